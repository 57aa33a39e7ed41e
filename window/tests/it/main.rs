//! The window, driven through the tree that screen readers see, with the program `claviger` behind it.

mod common;
mod frame;
mod halfway;
mod packaging;
mod pages;
mod portal;
mod words;
