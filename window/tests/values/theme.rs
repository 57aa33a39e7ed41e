use super::*;

/// The contrast of two colours, as the Web Content Accessibility Guidelines compute it.
fn contrast(a: Color32, b: Color32) -> f64 {
    let linear = |part: u8| {
        let part = f64::from(part) / 255.0;
        if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    let light =
        |color: Color32| 0.2126 * linear(color.r()) + 0.7152 * linear(color.g()) + 0.0722 * linear(color.b()) + 0.05;
    let (a, b) = (light(a), light(b));
    a.max(b) / a.min(b)
}

#[test]
fn contrast_is_computed_as_the_guidelines_do() {
    assert!((contrast(Color32::BLACK, Color32::WHITE) - 21.0).abs() < 0.01);
    assert!((contrast(rgb(0x767676), Color32::WHITE) - 4.54).abs() < 0.01);
}

/// Every text has 4.5 : 1, and every control 3 : 1, on everything that it stands on.
#[test]
fn everything_is_seen() {
    for (theme, p) in [("light", &LIGHT), ("dark", &DARK)] {
        let texts = [
            ("text", p.text, &[p.page, p.card, p.tint, p.hover][..]),
            ("dim", p.dim, &[p.page, p.card, p.tint]),
            ("link", p.link, &[p.page, p.card, p.tint, p.hover]),
            ("on accent", p.on_accent, &[p.accent]),
            ("ok", p.ok, &[p.page, p.card]),
            ("warning", p.warning, &[p.page, p.card]),
            ("danger", p.danger, &[p.page, p.card]),
        ];
        let controls = [
            ("edge", p.edge, &[p.page, p.card, p.hover][..]),
            ("accent", p.accent, &[p.page, p.card, p.hover, p.track]),
        ];
        let wanted = texts.iter().map(|it| (it, 4.5)).chain(controls.iter().map(|it| (it, 3.0)));
        for ((name, color, below), least) in wanted {
            for on in *below {
                let reached = contrast(*color, *on);
                assert!(reached >= least, "{theme}: {name} on {on:?} has {reached:.2}");
            }
        }
    }
}

/// The toolkit's own widgets take the colours that were checked.
#[test]
fn widgets_have_the_colours_of_the_theme() {
    for p in [&LIGHT, &DARK] {
        let mut style = Style::default();
        dress(&mut style, p);
        let widgets = &style.visuals.widgets;
        for (state, width) in [(widgets.inactive, 1.0), (widgets.hovered, 1.0), (widgets.active, FOCUS)] {
            assert!([p.edge, p.accent].contains(&state.bg_stroke.color) && state.bg_stroke.width >= width);
            assert_eq!(state.fg_stroke.color, p.text);
            assert!([p.card, p.hover].contains(&state.bg_fill));
        }
        assert_eq!(style.visuals.weak_text_color, Some(p.dim));
    }
}
