//! Icons as lines on a grid of 24, drawn in the colour of the text beside them. They need no special font.

use eframe::egui::{Atom, Color32, Painter, Pos2, Rect, Sense, Shape, Stroke, Ui, Vec2, vec2};

/// What an icon is made of.
enum Part {
    Line(&'static [(f32, f32)]),
    Loop(&'static [(f32, f32)]),
    /// A rectangle with round corners: left, top, right, bottom, radius.
    Box(f32, f32, f32, f32, f32),
    Circle(f32, f32, f32),
    Dot(f32, f32, f32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icon {
    Volumes,
    New,
    Measure,
    Container,
    Disk,
    Stick,
    Folder,
    Network,
    Dots,
    Back,
    Warning,
    Check,
    Lab,
    Task,
    Up,
    House,
    File,
}

impl Icon {
    fn parts(self) -> &'static [Part] {
        use Part::{Box, Circle, Dot, Line, Loop};
        match self {
            Self::Volumes => &[
                Box(3.0, 4.0, 21.0, 11.0, 2.0),
                Box(3.0, 13.0, 21.0, 20.0, 2.0),
                Dot(7.0, 7.5, 1.2),
                Dot(7.0, 16.5, 1.2),
                Line(&[(13.0, 7.5), (17.5, 7.5)]),
                Line(&[(13.0, 16.5), (17.5, 16.5)]),
            ],
            Self::New => {
                &[Circle(12.0, 12.0, 9.0), Line(&[(12.0, 8.0), (12.0, 16.0)]), Line(&[(8.0, 12.0), (16.0, 12.0)])]
            }
            Self::Measure => &[
                Line(&[(4.0, 20.0), (20.5, 20.0)]),
                Line(&[(6.5, 20.0), (6.5, 12.0)]),
                Line(&[(12.0, 20.0), (12.0, 4.0)]),
                Line(&[(17.5, 20.0), (17.5, 9.0)]),
            ],
            Self::Container => &[
                Box(5.0, 11.0, 19.0, 20.5, 2.0),
                Line(&[
                    (8.0, 11.0),
                    (8.0, 8.0),
                    (8.6, 5.9),
                    (10.0, 4.5),
                    (12.0, 3.8),
                    (14.0, 4.5),
                    (15.4, 5.9),
                    (16.0, 8.0),
                    (16.0, 11.0),
                ]),
                Dot(12.0, 15.7, 1.5),
            ],
            Self::Disk => &[
                Loop(&[(6.0, 5.0), (18.0, 5.0), (21.0, 13.0), (21.0, 19.0), (3.0, 19.0), (3.0, 13.0)]),
                Line(&[(3.0, 13.0), (21.0, 13.0)]),
                Dot(17.5, 16.0, 1.2),
                Dot(14.0, 16.0, 1.2),
            ],
            Self::Stick => &[
                Box(7.0, 9.0, 17.0, 21.0, 2.0),
                Loop(&[(9.0, 9.0), (9.0, 3.0), (15.0, 3.0), (15.0, 9.0)]),
                Dot(11.0, 6.0, 0.9),
                Dot(13.2, 6.0, 0.9),
            ],
            Self::Folder => &[Loop(&[
                (3.0, 6.5),
                (4.0, 5.5),
                (9.0, 5.5),
                (11.0, 8.0),
                (20.0, 8.0),
                (21.0, 9.0),
                (21.0, 18.5),
                (20.0, 19.5),
                (4.0, 19.5),
                (3.0, 18.5),
            ])],
            Self::Network => &[
                Circle(12.0, 12.0, 9.0),
                Line(&[(3.0, 12.0), (21.0, 12.0)]),
                Line(&[(12.0, 3.0), (9.3, 6.0), (8.3, 9.0), (8.0, 12.0), (8.3, 15.0), (9.3, 18.0), (12.0, 21.0)]),
                Line(&[(12.0, 3.0), (14.7, 6.0), (15.7, 9.0), (16.0, 12.0), (15.7, 15.0), (14.7, 18.0), (12.0, 21.0)]),
            ],
            Self::Dots => &[Dot(5.0, 12.0, 1.7), Dot(12.0, 12.0, 1.7), Dot(19.0, 12.0, 1.7)],
            Self::Back => &[Line(&[(14.5, 6.0), (8.5, 12.0), (14.5, 18.0)])],
            Self::Warning => &[
                Loop(&[(12.0, 3.5), (22.0, 20.5), (2.0, 20.5)]),
                Line(&[(12.0, 9.5), (12.0, 14.5)]),
                Dot(12.0, 17.5, 1.2),
            ],
            Self::Check => &[Circle(12.0, 12.0, 9.0), Line(&[(8.0, 12.2), (11.0, 15.2), (16.2, 9.2)])],
            Self::Lab => &[
                Line(&[(8.0, 3.5), (16.0, 3.5)]),
                Line(&[
                    (10.0, 3.5),
                    (10.0, 9.5),
                    (4.5, 18.5),
                    (5.5, 20.5),
                    (18.5, 20.5),
                    (19.5, 18.5),
                    (14.0, 9.5),
                    (14.0, 3.5),
                ]),
                Line(&[(7.5, 14.5), (16.5, 14.5)]),
            ],
            Self::Task => &[Circle(12.0, 12.0, 9.0), Line(&[(12.0, 7.0), (12.0, 12.0), (15.5, 14.0)])],
            Self::Up => &[Line(&[(12.0, 20.0), (12.0, 5.0)]), Line(&[(6.0, 11.0), (12.0, 5.0), (18.0, 11.0)])],
            Self::House => &[
                Line(&[(3.0, 11.5), (12.0, 4.0), (21.0, 11.5)]),
                Line(&[(5.5, 9.8), (5.5, 20.0), (18.5, 20.0), (18.5, 9.8)]),
            ],
            Self::File => &[
                Loop(&[(6.0, 3.0), (14.0, 3.0), (19.0, 8.0), (19.0, 21.0), (6.0, 21.0)]),
                Line(&[(14.0, 3.0), (14.0, 8.0), (19.0, 8.0)]),
            ],
        }
    }

    pub fn paint(self, painter: &Painter, rect: Rect, color: Color32) {
        let scale = rect.width().min(rect.height()) / 24.0;
        let origin = rect.center() - Vec2::splat(12.0 * scale);
        let at = |&(x, y): &(f32, f32)| -> Pos2 { origin + vec2(x, y) * scale };
        let stroke = Stroke::new((1.75 * scale).max(1.25), color);
        for part in self.parts() {
            painter.add(match *part {
                Part::Line(points) => Shape::line(points.iter().map(at).collect(), stroke),
                Part::Loop(points) => Shape::closed_line(points.iter().map(at).collect(), stroke),
                Part::Box(left, top, right, bottom, radius) => {
                    let rect = Rect::from_min_max(at(&(left, top)), at(&(right, bottom)));
                    Shape::rect_stroke(rect, radius * scale, stroke, eframe::egui::StrokeKind::Middle)
                }
                Part::Circle(x, y, radius) => Shape::circle_stroke(at(&(x, y)), radius * scale, stroke),
                Part::Dot(x, y, radius) => Shape::circle_filled(at(&(x, y)), radius * scale, color),
            });
        }
    }

    /// For a button, before its text.
    pub fn atom<'a>(self, size: f32) -> Atom<'a> {
        Atom::paint(Vec2::splat(size), move |ui, args| {
            let rect = Rect::from_center_size(args.rect.center(), Vec2::splat(size));
            self.paint(ui.painter(), rect, args.fallback_text_color);
        })
    }

    /// Alone. It says no more than the text beside it.
    pub fn draw(self, ui: &mut Ui, size: f32, color: Color32) {
        let (rect, _) = ui.allocate_exact_size(Vec2::splat(size), Sense::hover());
        self.paint(ui.painter(), rect, color);
    }

    /// In a tinted square, as rows begin.
    pub fn draw_in_square(self, ui: &mut Ui, below: Color32, color: Color32) {
        let (rect, _) = ui.allocate_exact_size(Vec2::splat(36.0), Sense::hover());
        ui.painter().rect_filled(rect, 8.0, below);
        self.paint(ui.painter(), Rect::from_center_size(rect.center(), Vec2::splat(20.0)), color);
    }
}
