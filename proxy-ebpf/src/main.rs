//! turnout's kernel programs. Thin: a program reads bytes, asks a pure function of `proxy-common`, and does what it
//! says.
#![no_std]
#![no_main]

mod maps;
mod packet;

use aya_ebpf::bindings::xdp_action;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use proxy_common::packet::summarize;

use crate::packet::XdpPacket;

/// Counts packets and bytes by what they are, and passes every one.
#[xdp]
pub fn turnout_probe(ctx: XdpContext) -> u32 {
    let class = summarize(&XdpPacket(&ctx)).class;
    if let Some(counter) = maps::PACKETS.get_ptr_mut(class.index()) {
        let length = (ctx.data_end() - ctx.data()) as u64;
        // SAFETY: the pointer is to this CPU's own slot, and an XDP program is not preempted by another on its CPU.
        unsafe {
            (*counter).packets += 1;
            (*counter).bytes += length;
        }
    }
    xdp_action::XDP_PASS
}

/// The licence these programs are under. It is not a GPL-compatible one for the kernel, so helpers marked GPL-only and
/// kernel functions are closed to them; none is used.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 11] = *b"Apache-2.0\0";

/// Never reached: a program in which the verifier finds a way here does not load, for it refuses endless loops.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
