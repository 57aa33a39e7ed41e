//! DES's S-boxes in functions of three inputs, which AVX-512 has in one instruction: 246 for the eight, 24 to 34 each.
//!
//! Found by our own search like those in [`super`], except that any function of three existing values is one step. In `t1 = 0x96(a,
//! b, c)`, bit 4a + 2b + c of the number is the value of the function.

/// A vector that takes any function of three bits in one instruction.
pub(in super::super) trait Ternary: Copy {
    /// Bit 4a + 2b + c of `TABLE` is the value of the function.
    fn ternary<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self;
}

/// S-box `BOX` (0..8).
#[inline(always)]
pub(in super::super) fn s_box<T: Ternary, const BOX: usize>(x: [T; 6]) -> [T; 4] {
    match BOX {
        0 => s1(x),
        1 => s2(x),
        2 => s3(x),
        3 => s4(x),
        4 => s5(x),
        5 => s6(x),
        6 => s7(x),
        _ => s8(x),
    }
}

macro_rules! circuit {
    ($name:ident, [$a0:ident, $b0:ident, $c0:ident, $d0:ident, $e0:ident, $f0:ident] => [$($out:ident),*],
        $($value:ident = $table:literal($a:ident, $b:ident, $c:ident);)*) => {
        #[inline(always)]
        fn $name<T: Ternary>([$a0, $b0, $c0, $d0, $e0, $f0]: [T; 6]) -> [T; 4] {
            $(let $value = T::ternary::<$table>($a, $b, $c);)*
            [$($out),*]
        }
    };
}

circuit! { s1, [a, b, c, d, e, f] => [t18, t26, t33, t11],
    t1 = 0x96(c, e, f); t2 = 0xE0(c, e, f); t3 = 0xAC(d, t1, t2); t4 = 0xB4(d, e, t1); t5 = 0xAC(a, t4, t3);
    t6 = 0x91(d, e, f); t7 = 0xB0(a, e, t4); t8 = 0xAC(c, t7, t6); t9 = 0x71(c, t1, t4); t10 = 0xAC(a, t9, t8);
    t11 = 0xAC(b, t5, t10); t12 = 0x36(c, t1, t7); t13 = 0x49(t2, t4, t12); t14 = 0xAC(d, t12, t13);
    t15 = 0x1D(c, t4, t14); t16 = 0x65(c, d, t14); t17 = 0xAC(a, t16, t15); t18 = 0xAC(b, t17, t14);
    t19 = 0x90(a, c, t4); t20 = 0xAC(a, t15, t19); t21 = 0x27(t1, t9, t20); t22 = 0xAC(b, t21, t20);
    t23 = 0x43(t1, t3, t20); t24 = 0x79(t10, t17, t23); t25 = 0xAC(b, t23, t24); t26 = 0xAC(f, t25, t22);
    t27 = 0x39(b, c, t10); t28 = 0xE1(t16, t22, t25); t29 = 0xAC(f, t28, t27); t30 = 0xA6(b, d, t28);
    t31 = 0xD2(b, t2, t21); t32 = 0xAC(a, t30, t31); t33 = 0xAC(e, t32, t29);
}
circuit! { s2, [a, b, c, d, e, f] => [t30, t9, t17, t25],
    t1 = 0x69(a, d, e); t2 = 0x25(a, b, e); t3 = 0x96(a, b, e); t4 = 0xAC(d, t2, t3); t5 = 0xAC(f, t4, t1);
    t6 = 0x9A(d, e, t3); t7 = 0x35(d, t2, t3); t8 = 0xAC(f, t7, t6); t9 = 0xAC(c, t8, t5); t10 = 0x5B(a, b, f);
    t11 = 0xAC(e, t5, t10); t12 = 0x18(b, t2, t10); t13 = 0xAC(d, t12, t11); t14 = 0xD9(t6, t11, t12);
    t15 = 0xA6(a, t1, t6); t16 = 0xAC(f, t15, t14); t17 = 0xAC(c, t13, t16); t18 = 0x63(a, c, d);
    t19 = 0xAC(b, t18, c); t20 = 0x63(b, t4, t18); t21 = 0xAC(f, t20, t19); t22 = 0x61(t8, t9, t21);
    t23 = 0x36(f, t6, t19); t24 = 0xAC(a, t23, t22); t25 = 0xAC(e, t24, t21); t26 = 0x5B(f, t10, t19);
    t27 = 0x47(b, t10, t26); t28 = 0xAC(e, t26, t27); t29 = 0x59(b, t15, t28); t30 = 0xAC(d, t28, t29);
}
circuit! { s3, [a, b, c, d, e, f] => [t25, t10, t17, t32],
    t1 = 0xAD(b, d, f); t2 = 0xC2(b, d, f); t3 = 0xAC(a, t2, t1); t4 = 0x5A(a, b, t1); t5 = 0xAC(c, t3, t4);
    t6 = 0x65(d, f, t4); t7 = 0x4D(a, b, f); t8 = 0xAC(d, t6, t7); t9 = 0xAC(c, t8, t6); t10 = 0xAC(e, t5, t9);
    t11 = 0x81(d, t2, t6); t12 = 0x61(d, t7, t11); t13 = 0xAC(e, t11, t12); t14 = 0x97(a, e, t6);
    t15 = 0x72(a, t13, t14); t16 = 0xAC(b, t14, t15); t17 = 0xAC(c, t13, t16); t18 = 0xBC(c, e, f);
    t19 = 0xAC(a, t18, t17); t20 = 0x69(c, e, t4); t21 = 0xAC(d, t19, t20); t22 = 0xD4(t6, t7, t19);
    t23 = 0x92(t6, t7, t18); t24 = 0xAC(e, t22, t23); t25 = 0xAC(b, t24, t21); t26 = 0x8B(d, t5, t14);
    t27 = 0x60(a, t5, t14); t28 = 0xAC(b, t27, t26); t29 = 0x96(b, d, f); t30 = 0x96(b, c, f);
    t31 = 0xAC(e, t29, t30); t32 = 0xAC(a, t31, t28);
}
circuit! { s4, [a, b, c, d, e, f] => [t23, t24, t13, t14],
    t1 = 0x61(a, b, c); t2 = 0x59(a, b, c); t3 = 0xAC(d, t2, t1); t4 = 0x69(a, c, d); t5 = 0x5E(a, c, d);
    t6 = 0xAC(b, t5, t4); t7 = 0xAC(e, t3, t6); t8 = 0xAC(b, c, e); t9 = 0x59(b, c, e); t10 = 0xAC(d, t8, t9);
    t11 = 0x47(t1, t4, t9); t12 = 0xAC(a, t10, t11); t13 = 0xAC(f, t7, t12); t14 = 0xC5(f, t7, t12);
    t15 = 0x38(t7, t10, t11); t16 = 0x56(a, d, e); t17 = 0xBC(a, d, e); t18 = 0xAC(c, t16, t17);
    t19 = 0xAC(b, t18, t15); t20 = 0x8E(t4, t11, t19); t21 = 0x94(t1, t18, t19); t22 = 0xAC(e, t21, t20);
    t23 = 0xAC(f, t19, t22); t24 = 0x3A(f, t19, t22);
}
circuit! { s5, [a, b, c, d, e, f] => [t34, t11, t27, t20],
    t1 = 0x66(a, b, f); t2 = 0x69(a, b, f); t3 = 0xAC(e, t2, t1); t4 = 0x96(a, e, t1); t5 = 0xAC(c, t3, t4);
    t6 = 0x1E(a, c, f); t7 = 0x76(a, c, f); t8 = 0xAC(b, t6, t7); t9 = 0x53(t1, t6, t7); t10 = 0xAC(e, t8, t9);
    t11 = 0xAC(d, t10, t5); t12 = 0x9A(b, c, f); t13 = 0xE4(b, c, f); t14 = 0xAC(e, t13, t12);
    t15 = 0x9C(t3, t9, t12); t16 = 0xAC(d, t14, t15); t17 = 0xA6(t5, t8, t14); t18 = 0xD1(b, t6, t14);
    t19 = 0xAC(d, t18, t17); t20 = 0xAC(a, t16, t19); t21 = 0x4D(b, t3, t15); t22 = 0xDB(c, t4, t9);
    t23 = 0xAC(a, t21, t22); t24 = 0x46(b, t18, t23); t25 = 0x5B(f, t18, t23); t26 = 0xAC(e, t24, t25);
    t27 = 0xAC(d, t23, t26); t28 = 0x8D(t1, t4, t14); t29 = 0x6C(e, t1, t9); t30 = 0xAC(c, t29, t28);
    t31 = 0x9D(a, t10, t30); t32 = 0x62(c, t4, t7); t33 = 0xAC(b, t32, t31); t34 = 0xAC(d, t30, t33);
}
circuit! { s6, [a, b, c, d, e, f] => [t9, t23, t30, t16],
    t1 = 0x69(a, d, e); t2 = 0x4B(b, e, t1); t3 = 0xAC(c, t2, t1); t4 = 0xC9(a, c, d); t5 = 0x92(a, c, d);
    t6 = 0xAC(b, t4, t5); t7 = 0x57(a, t2, t3); t8 = 0xAC(e, t6, t7); t9 = 0xAC(f, t3, t8); t10 = 0x56(a, d, t2);
    t11 = 0xDC(d, t2, t8); t12 = 0xAC(f, t10, t11); t13 = 0xB2(f, t1, t12); t14 = 0x94(a, e, t12);
    t15 = 0xAC(b, t14, t13); t16 = 0xAC(c, t15, t12); t17 = 0x96(b, f, t1); t18 = 0x19(a, t8, t17);
    t19 = 0xAC(c, t17, t18); t20 = 0xDE(b, t14, t17); t21 = 0xC5(a, t2, t20); t22 = 0xAC(c, t20, t21);
    t23 = 0xAC(d, t19, t22); t24 = 0x1E(c, t1, t18); t25 = 0x59(c, t14, t17); t26 = 0xAC(e, t25, t24);
    t27 = 0xA1(c, t11, t25); t28 = 0x36(f, t4, t19); t29 = 0xAC(e, t27, t28); t30 = 0xAC(b, t26, t29);
}
circuit! { s7, [a, b, c, d, e, f] => [t25, t19, t32, t9],
    t1 = 0x26(c, d, e); t2 = 0x9D(c, d, e); t3 = 0xAC(f, t2, t1); t4 = 0x69(c, f, t2); t5 = 0xAC(b, t4, t3);
    t6 = 0x17(c, t2, t3); t7 = 0x1C(c, t3, t4); t8 = 0xAC(b, t7, t6); t9 = 0xAC(a, t5, t8); t10 = 0x6C(c, e, f);
    t11 = 0xAC(b, t4, t10); t12 = 0x96(b, e, f); t13 = 0x8D(b, e, f); t14 = 0xAC(c, t12, t13);
    t15 = 0xAC(d, t11, t14); t16 = 0xA7(c, t3, t12); t17 = 0x83(d, e, t10); t18 = 0xAC(b, t17, t16);
    t19 = 0xAC(a, t18, t15); t20 = 0x6B(b, c, t10); t21 = 0x25(e, t12, t20); t22 = 0xAC(d, t21, t20);
    t23 = 0x5C(f, t1, t7); t24 = 0xAC(b, t15, t23); t25 = 0xAC(a, t24, t22); t26 = 0x97(t11, t15, t18);
    t27 = 0x76(b, t10, t26); t28 = 0xAC(a, t27, t26); t29 = 0xA8(b, t2, t22); t30 = 0x59(c, t11, t18);
    t31 = 0xAC(a, t29, t30); t32 = 0xAC(e, t31, t28);
}
circuit! { s8, [a, b, c, d, e, f] => [t11, t31, t25, t16],
    t1 = 0x4B(c, d, e); t2 = 0x9C(c, d, e); t3 = 0xAC(a, t1, t2); t4 = 0xE9(a, c, e); t5 = 0x45(a, c, e);
    t6 = 0xAC(d, t4, t5); t7 = 0xAC(b, t6, t3); t8 = 0x96(a, t1, t5); t9 = 0x85(t2, t3, t8); t10 = 0xAC(b, t8, t9);
    t11 = 0xAC(f, t7, t10); t12 = 0x55(a, b, t10); t13 = 0xAD(c, t4, t9); t14 = 0x74(a, t1, t4);
    t15 = 0xAC(b, t13, t14); t16 = 0xAC(f, t12, t15); t17 = 0x96(t1, t2, t4); t18 = 0x59(d, t9, t17);
    t19 = 0xAC(b, t17, t18); t20 = 0x95(a, t8, t17); t21 = 0x12(a, b, t17); t22 = 0x11(a, b, t20);
    t23 = 0xAC(e, t22, t21); t24 = 0xAC(b, t23, t20); t25 = 0xAC(f, t24, t19); t26 = 0x96(f, t8, t15);
    t27 = 0x6A(t19, t25, t26); t28 = 0xAC(d, t26, t27); t29 = 0x63(f, t15, t20); t30 = 0xAC(a, t28, t29);
    t31 = 0xAC(c, t30, t28);
}
