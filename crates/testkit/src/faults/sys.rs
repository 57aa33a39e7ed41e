//! ptrace(2), without a safe form.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use libc::{c_int, c_uint, user_regs_struct};
use rustix::process::Pid;
use seccompiler::BpfProgram;

/// Lets the calling thread trace the started program: the filter stops it at the selected calls. A new session keeps it
/// away from the terminal.
pub fn traced(command: &mut Command, filter: BpfProgram) {
    let prepare = move || {
        rustix::process::setsid()?;
        // SAFETY: plain numbers; the kernel follows no pointer.
        told(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) })?;
        seccompiler::apply_filter(&filter).map_err(|_| io::Error::last_os_error())
    };
    // SAFETY: between fork and exec there are three system calls; none of this takes a lock or memory.
    unsafe { command.pre_exec(prepare) };
}

/// Sets the events reported for a tracee and everything it starts, with `exits` also their exits. All tracees end with
/// the tracing thread.
pub fn follow(tracee: Pid, exits: bool) -> io::Result<()> {
    let options = if exits { libc::PTRACE_O_TRACEEXIT } else { 0 }
        | libc::PTRACE_O_TRACESECCOMP
        | libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    number(libc::PTRACE_SETOPTIONS, tracee, options)
}

/// Resumes a tracee, with a signal or 0.
pub fn go_on(tracee: Pid, signal: c_int) -> io::Result<()> {
    number(libc::PTRACE_CONT, tracee, signal)
}

/// Resumes a tracee until the end of its current call.
pub fn end_call(tracee: Pid) -> io::Result<()> {
    number(libc::PTRACE_SYSCALL, tracee, 0)
}

/// The registers of a stopped tracee.
pub fn registers(tracee: Pid) -> io::Result<user_regs_struct> {
    // SAFETY: numbers only, for which zero is a value.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    let pid = tracee.as_raw_nonzero().get();
    // SAFETY: the kernel writes one such structure through the pointer and keeps nothing.
    told(unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, ptr::null_mut::<u8>(), &raw mut registers) })?;
    Ok(registers)
}

/// Changes the registers of a stopped tracee. This can only affect the memory of that other process.
pub fn set_registers(tracee: Pid, registers: &user_regs_struct) -> io::Result<()> {
    let pid = tracee.as_raw_nonzero().get();
    // SAFETY: the kernel reads one such structure through the pointer and keeps nothing.
    told(unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, ptr::null_mut::<u8>(), ptr::from_ref(registers)) })
}

fn number(request: c_uint, tracee: Pid, data: c_int) -> io::Result<()> {
    let pid = tracee.as_raw_nonzero().get();
    // SAFETY: private to this file, for requests whose data are a number.
    told(unsafe { libc::ptrace(request, pid, ptr::null_mut::<u8>(), i64::from(data)) })
}

fn told(result: i64) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
