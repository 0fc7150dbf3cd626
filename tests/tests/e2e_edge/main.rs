//! The kernel's edge before a real gateway: hosts in namespaces, real packets, the binary with its programs loaded.

mod admission;
mod flood;
mod lifecycle;
mod privileges;
mod steering;
mod support;
