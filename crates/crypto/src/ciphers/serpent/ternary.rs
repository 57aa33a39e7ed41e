//! Serpent's S-boxes in functions of three inputs, which AVX-512 has in one instruction: seven or eight each.
//!
//! Found by our own search: exhaustive up to seven functions, so that no smaller circuit exists, and by chance for the
//! few that need eight. As in [`super::binary`] the functions are normalised, N(x) = S(x) ^ S(0). In `e = 0x96(a, b,
//! c)` bit 4a + 2b + c of the number is the value of the function.

/// A vector that takes any function of three bits in one instruction.
pub(super) trait Ternary: Copy {
    /// Bit 4a + 2b + c of `TABLE` is the value of the function.
    fn ternary<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self;
}

/// N of the S-box `BOX` (0..8).
#[inline(always)]
pub(super) fn forward<T: Ternary, const BOX: usize>(x: [T; 4]) -> [T; 4] {
    match BOX {
        0 => n0(x),
        1 => n1(x),
        2 => n2(x),
        3 => n3(x),
        4 => n4(x),
        5 => n5(x),
        6 => n6(x),
        _ => n7(x),
    }
}

/// The inverse of [`forward`].
#[inline(always)]
pub(super) fn inverse<T: Ternary, const BOX: usize>(y: [T; 4]) -> [T; 4] {
    match BOX {
        0 => n0_inverse(y),
        1 => n1_inverse(y),
        2 => n2_inverse(y),
        3 => n3_inverse(y),
        4 => n4_inverse(y),
        5 => n5_inverse(y),
        6 => n6_inverse(y),
        _ => n7_inverse(y),
    }
}

macro_rules! circuit {
    ($name:ident, [$($in:ident),*] => [$($out:ident),*],
        $($value:ident = $table:literal($a:ident, $b:ident, $c:ident);)*) => {
        #[inline(always)]
        fn $name<T: Ternary>([$($in),*]: [T; 4]) -> [T; 4] {
            $(let $value = T::ternary::<$table>($a, $b, $c);)*
            [$($out),*]
        }
    };
}

circuit! { n0, [a, b, c, d] => [j, k, h, i],
    e = 0x96(a, c, d); f = 0x8E(a, b, d); g = 0xB8(a, b, d); h = 0xC6(e, f, g);
    i = 0x96(c, f, g); j = 0xE4(e, g, i); k = 0xD8(e, g, i);
}
circuit! { n1, [a, b, c, d] => [k, i, f, j],
    e = 0x6A(a, b, d); f = 0x96(b, c, e); g = 0xD8(a, b, d); h = 0x6C(a, c, e);
    i = 0x1E(e, g, h); j = 0x9A(f, g, h); k = 0xD2(g, i, j);
}
circuit! { n2, [a, b, c, d] => [h, j, k, i],
    e = 0xB8(a, c, d); f = 0x66(a, b, e); g = 0x6A(a, c, d); h = 0x96(b, c, g);
    i = 0xD2(e, g, h); j = 0x72(f, g, i); k = 0x6C(f, g, i);
}
circuit! { n3, [a, b, c, d] => [j, l, k, h],
    e = 0x38(b, c, d); f = 0x86(a, b, c); g = 0x9E(a, c, d); h = 0x96(c, f, g);
    i = 0x6C(d, e, g); j = 0x5A(a, b, i); k = 0x9C(e, g, j); l = 0xD2(f, i, k);
}
circuit! { n4, [a, b, c, d] => [g, j, i, k],
    e = 0x36(a, c, d); f = 0xB8(a, b, d); g = 0x96(b, e, f); h = 0x96(a, b, d);
    i = 0x74(f, g, h); j = 0xD2(e, h, i); k = 0xA6(b, g, h);
}
circuit! { n5, [a, b, c, d] => [h, g, k, j],
    e = 0xA6(a, b, c); f = 0xB4(b, d, e); g = 0x96(a, e, f); h = 0x6C(d, e, g);
    i = 0x1C(a, e, f); j = 0x66(a, d, i); k = 0xB4(f, h, j);
}
circuit! { n6, [a, b, c, d] => [i, f, j, k],
    e = 0x6C(a, c, d); f = 0x66(a, b, e); g = 0x8E(a, d, f); h = 0x16(a, b, d);
    i = 0x6A(c, g, h); j = 0x56(c, g, h); k = 0xD8(e, g, h);
}
circuit! { n7, [a, b, c, d] => [h, j, l, k],
    e = 0x9A(a, b, d); f = 0x2E(b, c, e); g = 0xD8(a, b, f); h = 0x9A(c, d, g);
    i = 0x2C(a, d, h); j = 0x56(b, c, i); k = 0xD2(f, h, j); l = 0x96(g, i, k);
}
circuit! { n0_inverse, [a, b, c, d] => [i, j, k, g],
    e = 0x16(a, b, d); f = 0x4E(a, b, d); g = 0x36(c, e, f); h = 0x6A(a, b, c);
    i = 0x96(f, g, h); j = 0x74(f, g, h); k = 0x66(a, d, h);
}
circuit! { n1_inverse, [a, b, c, d] => [i, j, k, h],
    e = 0x3A(a, b, d); f = 0xD2(a, b, d); g = 0xB4(a, b, d); h = 0x66(a, c, g);
    i = 0x4E(e, f, h); j = 0xD8(e, f, h); k = 0xD2(g, i, j);
}
circuit! { n2_inverse, [a, b, c, d] => [h, j, i, k],
    e = 0x96(a, b, d); f = 0x4E(b, c, d); g = 0x3A(b, c, d); h = 0x96(c, e, g);
    i = 0x6C(f, g, h); j = 0x96(a, f, i); k = 0xCA(e, f, g);
}
circuit! { n3_inverse, [a, b, c, d] => [i, k, l, h],
    e = 0x92(b, c, d); f = 0x9A(a, b, c); g = 0x72(c, d, f); h = 0xA6(a, b, g);
    i = 0xD8(e, f, h); j = 0xC2(a, d, h); k = 0x96(g, i, j); l = 0x56(b, c, j);
}
circuit! { n4_inverse, [a, b, c, d] => [i, f, k, j],
    e = 0x68(a, c, d); f = 0xA6(a, b, e); g = 0x78(a, d, f); h = 0x9A(a, b, c);
    i = 0x9A(f, g, h); j = 0x96(d, g, h); k = 0xD2(g, i, j);
}
circuit! { n5_inverse, [a, b, c, d] => [i, j, k, g],
    e = 0xCE(a, b, c); f = 0x9C(a, c, d); g = 0x96(d, e, f); h = 0x78(a, b, g);
    i = 0x96(b, f, h); j = 0xB4(f, g, h); k = 0xD2(h, i, j);
}
circuit! { n6_inverse, [a, b, c, d] => [i, h, k, j],
    e = 0x5C(a, c, d); f = 0xE8(a, c, d); g = 0x9A(a, c, d); h = 0x66(a, b, g);
    i = 0xD2(e, f, h); j = 0x96(b, f, i); k = 0x78(g, i, j);
}
circuit! { n7_inverse, [a, b, c, d] => [h, j, k, l],
    e = 0x4E(b, c, d); f = 0xA4(b, c, d); g = 0x9E(a, b, f); h = 0x66(a, c, g);
    i = 0xD6(a, c, d); j = 0x6C(a, f, i); k = 0x86(f, g, i); l = 0xA4(e, h, i);
}
