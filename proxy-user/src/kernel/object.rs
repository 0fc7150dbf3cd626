//! The kernel programs that this binary carries.

/// The ELF object, or `None` in a binary that was built on a host without the kernel toolchain.
#[must_use]
pub fn object() -> Option<&'static [u8]> {
    EMBEDDED
}

#[cfg(kernel_programs)]
const EMBEDDED: Option<&[u8]> = Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/turnout-ebpf")));

#[cfg(not(kernel_programs))]
const EMBEDDED: Option<&[u8]> = None;

/// The ELF object of the splice's programs, or `None` as above.
#[must_use]
pub fn splice_object() -> Option<&'static [u8]> {
    EMBEDDED_SPLICE
}

#[cfg(splice_programs)]
const EMBEDDED_SPLICE: Option<&[u8]> = Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/turnout-splice")));

#[cfg(not(splice_programs))]
const EMBEDDED_SPLICE: Option<&[u8]> = None;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_embedded_is_an_object_for_the_kernel() {
        const EM_BPF: [u8; 2] = 247u16.to_le_bytes();
        for object in [object(), splice_object()].into_iter().flatten() {
            assert_eq!(&object[..4], b"\x7fELF");
            assert_eq!(object[18..20], EM_BPF);
            assert_eq!(object.as_ptr().align_offset(8), 0, "aya reads ELF64 structures in place");
        }
    }
}
