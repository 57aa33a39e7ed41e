//! DES's S-boxes as circuits: here in gates of two inputs, 492 for the eight, 54 to 68 each.
//!
//! Found by our own search. An output bit is an existing value, or one or two gates over existing values. Otherwise one of the
//! inputs, picked at random, chooses between two functions, which need to be right only where that input is 0, or 1. An AND takes
//! its first input inverted, which is one instruction on most processors. The first input is the highest bit of six, and so is the
//! first output of four.

#[cfg(target_arch = "x86_64")]
pub(super) mod ternary;

use std::ops::{BitAnd, BitOr, BitXor, Not};

/// A vector of words of 64 bits. Bit operations and shifts work on each word by itself.
pub(super) trait Lanes:
    Copy + BitXor<Output = Self> + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self>
{
    /// Words in a vector.
    const WORDS: usize;

    /// Every word is `word`.
    fn splat(word: u64) -> Self;
    /// Every bit is the sign of `mask`, which has all bits alike.
    fn mask(mask: i32) -> Self;
    fn shl<const N: i32>(self) -> Self;
    fn shr<const N: i32>(self) -> Self;

    /// `WORDS` blocks, at any alignment.
    fn load(blocks: &[[u8; 8]]) -> Self;
    /// The inverse of `load`.
    fn store(self, blocks: &mut [[u8; 8]]);

    /// S-box `BOX` (0..8).
    #[inline(always)]
    fn s_box<const BOX: usize>(x: [Self; 6]) -> [Self; 4] {
        s_box::<Self, BOX>(x)
    }
}

/// S-box `BOX` (0..8).
#[inline(always)]
pub(super) fn s_box<L: Lanes, const BOX: usize>(x: [L; 6]) -> [L; 4] {
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
    ($name:ident, [$($in:ident),*] => [$($out:ident),*], $($value:ident = $gate:expr;)*) => {
        #[inline(always)]
        fn $name<L: Lanes>([$($in),*]: [L; 6]) -> [L; 4] {
            $(let $value = $gate;)*
            [$($out),*]
        }
    };
}

circuit! { s1, [a, b, c, d, e, f] => [t23, t42, t56, t68],
    t1 = b ^ f; t2 = !e & a; t3 = t1 ^ t2; t4 = b ^ e; t5 = !a & t4; t6 = t3 ^ t5; t7 = !t5; t8 = a & b;
    t9 = t8 & f; t10 = t7 ^ t9; t11 = t9 | e; t12 = t10 ^ t11; t13 = !c & t12; t14 = t6 ^ t13; t15 = e | f;
    t16 = !b & t12; t17 = t15 ^ t16; t18 = a | f; t19 = t10 ^ t18; t20 = !c & t19; t21 = t17 ^ t20; t22 = t21 & d;
    t23 = t14 ^ t22; t24 = d ^ t10; t25 = a | d; t26 = c ^ t25; t27 = t26 | b; t28 = t24 ^ t27; t29 = t23 & t27;
    t30 = c ^ t29; t31 = t30 & a; t32 = t27 ^ t31; t33 = !f & t32; t34 = t28 ^ t33; t35 = t3 & t25; t36 = t26 ^ t35;
    t37 = a | t26; t38 = !t37 & t28; t39 = t38 & f; t40 = t36 ^ t39; t41 = t40 | e; t42 = t34 ^ t41;
    t43 = !t8 & t42; t44 = t26 ^ t43; t45 = b | t24; t46 = t28 & t45; t47 = t46 | f; t48 = t44 ^ t47;
    t49 = t24 | t44; t50 = c ^ t49; t51 = !t23 & d; t52 = !t51 & t27; t53 = t52 & a; t54 = t50 ^ t53; t55 = t54 | e;
    t56 = t48 ^ t55; t57 = !t9 & t3; t58 = t54 ^ t57; t59 = t22 | t42; t60 = t48 ^ t59; t61 = t60 | a;
    t62 = t58 ^ t61; t63 = !t46 & d; t64 = t36 ^ t48; t65 = !a & t64; t66 = t63 ^ t65; t67 = t66 | c;
    t68 = t62 ^ t67;
}
circuit! { s2, [a, b, c, d, e, f] => [t31, t17, t46, t58],
    t1 = a ^ e; t2 = !f; t3 = t2 & b; t4 = t1 ^ t3; t5 = a & e; t6 = !t5 & t3; t7 = t6 | d; t8 = t4 ^ t7;
    t9 = b | t2; t10 = t6 ^ t9; t11 = e & f; t12 = t11 & d; t13 = t10 ^ t12; t14 = t13 | a; t15 = t14 & t13;
    t16 = t15 | c; t17 = t8 ^ t16; t18 = !a & f; t19 = b ^ t18; t20 = a ^ t2; t21 = t14 ^ t20; t22 = !e & t21;
    t23 = t19 ^ t22; t24 = t11 ^ t14; t25 = t18 | t24; t26 = !c & t25; t27 = t23 ^ t26; t28 = !t21 & e;
    t29 = b | t28; t30 = !d & t29; t31 = t27 ^ t30; t32 = !t19 & c; t33 = t1 ^ t32; t34 = t5 ^ t16; t35 = t34 | f;
    t36 = t33 ^ t35; t37 = !e & c; t38 = c | t17; t39 = t38 & a; t40 = t37 ^ t39; t41 = a ^ c; t42 = t22 ^ t41;
    t43 = t42 & f; t44 = t40 ^ t43; t45 = t44 | d; t46 = t36 ^ t45; t47 = c ^ t10; t48 = !t31 & t21; t49 = a ^ t48;
    t50 = !e & t49; t51 = t47 ^ t50; t52 = !t17; t53 = !t8 & t43; t54 = t26 ^ t53; t55 = t54 & e; t56 = t52 ^ t55;
    t57 = t56 | b; t58 = t51 ^ t57;
}
circuit! { s3, [a, b, c, d, e, f] => [t37, t50, t24, t63],
    t1 = b ^ e; t2 = f ^ t1; t3 = t2 ^ a; t4 = !a & e; t5 = !f & t4; t6 = t5 | c; t7 = t3 ^ t6; t8 = c | f; t9 = !f;
    t10 = t9 | a; t11 = t8 ^ t10; t12 = t5 & e; t13 = t11 ^ t12; t14 = t13 | b; t15 = t7 ^ t14; t16 = !a & t11;
    t17 = !t16 & b; t18 = t7 & t10; t19 = t9 | b; t20 = t18 ^ t19; t21 = t20 | e; t22 = t17 ^ t21; t23 = t22 & d;
    t24 = t15 ^ t23; t25 = b ^ c; t26 = t3 ^ t25; t27 = c & t20; t28 = t24 | t27; t29 = !b & t28; t30 = t26 ^ t29;
    t31 = e ^ t28; t32 = !t10 & t31; t33 = !t32 & e; t34 = !b & t33; t35 = t32 ^ t34; t36 = t35 | d;
    t37 = t30 ^ t36; t38 = c | e; t39 = t2 ^ t38; t40 = !t24 & f; t41 = e ^ t40; t42 = t41 & d; t43 = t39 ^ t42;
    t44 = !b & d; t45 = t32 & t44; t46 = !t37 & t18; t47 = !c & t46; t48 = t45 ^ t47; t49 = t48 | a;
    t50 = t43 ^ t49; t51 = t25 | t40; t52 = t10 ^ t51; t53 = t30 | t40; t54 = t3 ^ t53; t55 = t54 | e;
    t56 = t52 ^ t55; t57 = t9 | t31; t58 = t37 ^ t51; t59 = !t32 & t58; t60 = !a & t59; t61 = t57 ^ t60;
    t62 = t61 & d; t63 = t56 ^ t62;
}
circuit! { s4, [a, b, c, d, e, f] => [t43, t50, t26, t54],
    t1 = a ^ c; t2 = e | t1; t3 = t2 & a; t4 = c ^ t3; t5 = !e; t6 = t5 & d; t7 = t4 ^ t6; t8 = !c & d; t9 = c ^ e;
    t10 = d | t9; t11 = t10 | a; t12 = t8 ^ t11; t13 = t12 & b; t14 = t7 ^ t13; t15 = c | t5; t16 = t1 | d;
    t17 = t16 & t15; t18 = c ^ t5; t19 = d | t18; t20 = !t2; t21 = t20 & a; t22 = t19 ^ t21; t23 = !b & t22;
    t24 = t17 ^ t23; t25 = !f & t24; t26 = t14 ^ t25; t27 = f | t1; t28 = t27 & d; t29 = t11 ^ t28; t30 = a | t18;
    t31 = t19 & t30; t32 = t31 | f; t33 = t30 ^ t32; t34 = t33 | e; t35 = t29 ^ t34; t36 = t1 & t30;
    t37 = t12 ^ t36; t38 = d ^ t4; t39 = t18 | t38; t40 = t39 & f; t41 = t37 ^ t40; t42 = !b & t41; t43 = t35 ^ t42;
    t44 = f ^ t35; t45 = t36 ^ t44; t46 = t39 ^ t41; t47 = !b & t46; t48 = t45 ^ t47; t49 = t4 | d; t50 = t48 ^ t49;
    t51 = t14 ^ t24; t52 = !t24; t53 = !f & t52; t54 = t51 ^ t53;
}
circuit! { s5, [a, b, c, d, e, f] => [t50, t19, t65, t36],
    t1 = b ^ c; t2 = f ^ t1; t3 = b ^ f; t4 = t1 & t3; t5 = t4 | d; t6 = t2 ^ t5; t7 = !t5 & b; t8 = t7 | a;
    t9 = t6 ^ t8; t10 = !c & a; t11 = !a & c; t12 = e ^ t11; t13 = a ^ c; t14 = !f & t13; t15 = t12 ^ t14;
    t16 = t15 | d; t17 = t10 ^ t16; t18 = t17 & e; t19 = t9 ^ t18; t20 = e & t2; t21 = t12 ^ t20; t22 = c ^ d;
    t23 = t12 | t22; t24 = !b & t23; t25 = t21 ^ t24; t26 = f | t20; t27 = t6 ^ t26; t28 = t27 | d; t29 = t25 ^ t28;
    t30 = t2 | t23; t31 = e | t9; t32 = !t15 & t31; t33 = t32 | c; t34 = t30 ^ t33; t35 = t34 & a; t36 = t29 ^ t35;
    t37 = t2 & t36; t38 = t31 ^ t37; t39 = t2 | t4; t40 = t24 ^ t39; t41 = !a & t40; t42 = t38 ^ t41;
    t43 = t8 ^ t21; t44 = t18 | t43; t45 = t18 ^ t21; t46 = t26 ^ t45; t47 = !b & t46; t48 = t44 ^ t47;
    t49 = !d & t48; t50 = t42 ^ t49; t51 = a ^ t19; t52 = t50 ^ t51; t53 = !a & t29; t54 = t52 ^ t53; t55 = !t36;
    t56 = t55 | b; t57 = t54 ^ t56; t58 = !t1 & t14; t59 = t36 ^ t58; t60 = !b & t35; t61 = t58 | t60;
    t62 = t61 & d; t63 = t59 ^ t62; t64 = t63 | e; t65 = t57 ^ t64;
}
circuit! { s6, [a, b, c, d, e, f] => [t20, t35, t64, t49],
    t1 = a ^ d; t2 = e ^ t1; t3 = !b; t4 = !e & t1; t5 = t3 ^ t4; t6 = t5 | c; t7 = t2 ^ t6; t8 = a | c;
    t9 = e | t8; t10 = c & t4; t11 = t10 & b; t12 = t9 ^ t11; t13 = t2 ^ t8; t14 = c ^ t1; t15 = t14 | b;
    t16 = t15 & t13; t17 = t16 & d; t18 = t12 ^ t17; t19 = t18 & f; t20 = t7 ^ t19; t21 = t5 ^ t18; t22 = !b & d;
    t23 = !c & t22; t24 = t21 ^ t23; t25 = !c & t15; t26 = t4 | t25; t27 = t26 & a; t28 = t24 ^ t27; t29 = d & t20;
    t30 = !t29 & b; t31 = t7 | t30; t32 = t31 | e; t33 = t29 ^ t32; t34 = t33 & f; t35 = t28 ^ t34;
    t36 = !t23 & t13; t37 = t32 ^ t36; t38 = c | t17; t39 = t27 ^ t38; t40 = t39 & b; t41 = t37 ^ t40; t42 = a | t6;
    t43 = t11 ^ t42; t44 = b & t26; t45 = a ^ t44; t46 = t45 | d; t47 = t43 ^ t46; t48 = t47 | f; t49 = t41 ^ t48;
    t50 = !c & a; t51 = t50 | f; t52 = t13 ^ t51; t53 = !c & d; t54 = !t53 & t35; t55 = t54 & e; t56 = t52 ^ t55;
    t57 = c & t37; t58 = t8 ^ t57; t59 = c | t49; t60 = t58 ^ t59; t61 = !f & t60; t62 = t58 ^ t61; t63 = !b & t62;
    t64 = t56 ^ t63;
}
circuit! { s7, [a, b, c, d, e, f] => [t34, t50, t60, t18],
    t1 = b | c; t2 = f ^ t1; t3 = !d & e; t4 = t2 ^ t3; t5 = b & f; t6 = c ^ t5; t7 = t6 & d; t8 = a ^ t7;
    t9 = !e & t8; t10 = t4 ^ t9; t11 = t6 ^ t10; t12 = b & e; t13 = t12 | d; t14 = t11 ^ t13; t15 = t14 & f;
    t16 = e ^ t15; t17 = t16 & a; t18 = t10 ^ t17; t19 = d ^ e; t20 = c ^ t3; t21 = !f & t20; t22 = t19 ^ t21;
    t23 = f | t10; t24 = t6 ^ t23; t25 = !a & t24; t26 = t22 ^ t25; t27 = t8 & t16; t28 = !t21 & t27; t29 = !t9 & d;
    t30 = t28 ^ t29; t31 = !c & t30; t32 = t28 ^ t31; t33 = t32 | b; t34 = t26 ^ t33; t35 = e ^ t27; t36 = c ^ t9;
    t37 = t36 | a; t38 = t35 ^ t37; t39 = a & t19; t40 = t8 ^ t39; t41 = t40 | f; t42 = t38 ^ t41; t43 = !t2;
    t44 = t43 ^ d; t45 = f & t3; t46 = t8 ^ t45; t47 = t46 & a; t48 = t44 ^ t47; t49 = !b & t48; t50 = t42 ^ t49;
    t51 = e ^ t8; t52 = !t27 & t51; t53 = !t18 & t4; t54 = t22 ^ t53; t55 = t54 | d; t56 = t52 ^ t55;
    t57 = t30 & t38; t58 = a ^ t57; t59 = t58 | b; t60 = t56 ^ t59;
}
circuit! { s8, [a, b, c, d, e, f] => [t22, t60, t50, t36],
    t1 = !c; t2 = b | t1; t3 = !e & t2; t4 = t1 ^ t3; t5 = b ^ e; t6 = t5 | d; t7 = t4 ^ t6; t8 = b | c;
    t9 = d ^ t8; t10 = t2 ^ t7; t11 = t10 & e; t12 = t9 ^ t11; t13 = !f & t12; t14 = t7 ^ t13; t15 = f ^ t3;
    t16 = t13 | t15; t17 = b | t13; t18 = !t15 & t17; t19 = t18 & d; t20 = t16 ^ t19; t21 = !a & t20;
    t22 = t14 ^ t21; t23 = c ^ t18; t24 = t12 | b; t25 = t23 ^ t24; t26 = !e & t13; t27 = t26 | a; t28 = t25 ^ t27;
    t29 = t10 ^ t23; t30 = !t22 & t29; t31 = t3 | t22; t32 = !t5 & t31; t33 = !f & t32; t34 = t30 ^ t33;
    t35 = !d & t34; t36 = t28 ^ t35; t37 = b & t26; t38 = t14 ^ t37; t39 = t2 ^ t5; t40 = t26 ^ t39; t41 = t40 & a;
    t42 = t38 ^ t41; t43 = t2 | t25; t44 = c | d; t45 = t43 ^ t44; t46 = t2 & t32; t47 = t46 | a; t48 = t45 ^ t47;
    t49 = t48 & f; t50 = t42 ^ t49; t51 = t20 ^ t38; t52 = !t51 & t43; t53 = e & t25; t54 = !c & t53;
    t55 = t52 ^ t54; t56 = t15 ^ t20; t57 = t40 | b; t58 = t56 ^ t57; t59 = t58 | a; t60 = t55 ^ t59;
}
