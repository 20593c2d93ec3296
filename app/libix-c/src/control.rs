//! The control interface: vNICs, filters and rates.
//!
//! Requests go to the control socket of a dataplane (ix run --control) or of a shared interface (ix
//! share). Any thread may make them, one at a time for each connection. They grant capabilities:
//! texts of 32 digits and a zero byte, which cannot be guessed and may be passed to another
//! program. Filters and rates are written as for ix ctl. After an error ix_last_error has the
//! reason.
use crate::error::remember;
use core::ffi::{CStr, c_char};
use ix_abi::error;
use libix::control::{Capability, Control, ControlError};

/// A connection to a control socket.
pub struct ix_control(Control);

/// Connects to a control socket. On failure returns NULL, and ix_last_error has the reason.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_open(path: *const c_char) -> *mut ix_control {
    // SAFETY: the caller's promise.
    let opened = must(unsafe { text(path) }).and_then(Control::connect);
    match opened {
        Ok(control) => Box::into_raw(Box::new(ix_control(control))),
        Err(why) => {
            remember(&why);
            core::ptr::null_mut()
        }
    }
}

/// Closes a connection. Capabilities that it was granted stay valid.
///
/// # Safety
/// `control` is null or a connection that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_close(control: *mut ix_control) {
    if !control.is_null() {
        // SAFETY: from `Box::into_raw` in `ix_control_open`.
        drop(unsafe { Box::from_raw(control) });
    }
}

/// Creates a vNIC with this many queue pairs on a shared interface. It is removed when the process
/// with the id owner ends; with an owner of 0 it stays. Writes its link, for ix run --nic
/// afxdp:LINK, and its capability.
///
/// # Safety
/// `control` is null or a connection that was not closed. `name` is null or a C string. The other
/// pointers are null or have room for as many bytes as their lengths say, `capability` for 33.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_vnic_new(
    control: *mut ix_control,
    name: *const c_char,
    queues: u32,
    owner: u32,
    link: *mut c_char,
    link_bytes: usize,
    capability: *mut c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) };
    let make = |control: &mut Control| {
        let name = must(name)?;
        let owner = (owner != 0).then_some(owner);
        let made = control.create_vnic(name, queues as usize, owner)?;
        // SAFETY: places of these sizes by the caller's promise.
        unsafe {
            write(&made.link, link, link_bytes);
            write(made.capability.reveal(), capability, CAPABILITY_BYTES);
        }
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(control, make) }
}

/// Creates a vNIC with a tap and one queue pair, which needs no privilege to open. Writes the
/// device, for ix run --nic DEVICE, and its capability.
///
/// # Safety
/// `control` is null or a connection that was not closed. `name` is null or a C string. The other
/// pointers are null or have room for as many bytes as their lengths say, `capability` for 33.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_vnic_new_tap(
    control: *mut ix_control,
    name: *const c_char,
    owner: u32,
    device: *mut c_char,
    device_bytes: usize,
    capability: *mut c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) };
    let make = |control: &mut Control| {
        let name = must(name)?;
        let made = control.create_tap_vnic(name, (owner != 0).then_some(owner))?;
        // SAFETY: places of these sizes by the caller's promise.
        unsafe {
            write(&made.device, device, device_bytes);
            write(made.capability.reveal(), capability, CAPABILITY_BYTES);
        }
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(control, make) }
}

/// Deletes a vNIC. Linux receives its packets again.
///
/// # Safety
/// `control` is null or a connection that was not closed. The text is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_vnic_delete(
    control: *mut ix_control,
    name: *const c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) };
    let delete = |control: &mut Control| control.delete_vnic(must(name)?).map(|()| 0);
    // SAFETY: the caller's promise.
    unsafe { with(control, delete) }
}

/// Grants a filter to a holder. Returns its number and writes its capability. A dataplane assigns
/// it at once. On a shared interface it is assigned to the vNIC with this name, or if vnic is NULL,
/// later by ix_control_assign. holder may be NULL.
///
/// # Safety
/// `control` is null or a connection that was not closed. The texts are null or C strings.
/// `capability` is null or has room for 33 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_filter(
    control: *mut ix_control,
    filter: *const c_char,
    holder: *const c_char,
    vnic: *const c_char,
    capability: *mut c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let (filter, holder, vnic) = unsafe { (text(filter), text(holder), text(vnic)) };
    let grant = |control: &mut Control| {
        let made = control.create_filters(&[must(filter)?], holder?, vnic?)?;
        let made = made.first().ok_or(ControlError::Nonsense)?;
        // SAFETY: a place of this size by the caller's promise.
        unsafe { write(made.capability.reveal(), capability, CAPABILITY_BYTES) };
        Ok(made.filter.into())
    };
    // SAFETY: the caller's promise.
    unsafe { with(control, grant) }
}

/// Grants a filter to a holder and assigns it to one queue of a dataplane's vNIC only: the same as
/// ix_control_filter and ix_control_assign_queue, in one step. holder may be NULL.
///
/// # Safety
/// `control` is null or a connection that was not closed. The texts are null or C strings.
/// `capability` is null or has room for 33 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_filter_of_queue(
    control: *mut ix_control,
    filter: *const c_char,
    holder: *const c_char,
    queue: u32,
    capability: *mut c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let (filter, holder) = unsafe { (text(filter), text(holder)) };
    let grant = |control: &mut Control| {
        let made = control.create_filters_of_queue(&[must(filter)?], holder?, queue as usize)?;
        let made = made.first().ok_or(ControlError::Nonsense)?;
        // SAFETY: a place of this size by the caller's promise.
        unsafe { write(made.capability.reveal(), capability, CAPABILITY_BYTES) };
        Ok(made.filter.into())
    };
    // SAFETY: the caller's promise.
    unsafe { with(control, grant) }
}

/// Derives a capability to pass on, for a part of a filter or, if part is NULL, for all of it.
/// Writes it and returns its number. It becomes invalid with the capability that it is derived
/// from.
///
/// # Safety
/// `control` is null or a connection that was not closed. The texts are null or C strings.
/// `capability` is null or has room for 33 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_derive(
    control: *mut ix_control,
    from: *const c_char,
    part: *const c_char,
    capability: *mut c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let (from, part) = unsafe { (capability_at(from), text(part)) };
    let derive = |control: &mut Control| {
        let made = control.derive(&from?, part?)?;
        // SAFETY: a place of this size by the caller's promise.
        unsafe { write(made.capability.reveal(), capability, CAPABILITY_BYTES) };
        Ok(made.filter.into())
    };
    // SAFETY: the caller's promise.
    unsafe { with(control, derive) }
}

/// Assigns a filter to a vNIC of a shared interface, both by their capabilities.
///
/// # Safety
/// `control` is null or a connection that was not closed. The texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_assign(
    control: *mut ix_control,
    filter: *const c_char,
    vnic: *const c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let (filter, vnic) = unsafe { (capability_at(filter), capability_at(vnic)) };
    // SAFETY: the caller's promise.
    unsafe { with(control, |control| control.assign(&filter?, &vnic?).map(|()| 0)) }
}

/// Assigns a filter to one queue of a dataplane's vNIC only, or if queue is negative, to all queues
/// again. Receive filters for TCP, UDP, ICMP or ARP are refused, because their flow group decides
/// the queue.
///
/// # Safety
/// `control` is null or a connection that was not closed. The text is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_assign_queue(
    control: *mut ix_control,
    filter: *const c_char,
    queue: i64,
) -> i64 {
    // SAFETY: the caller's promise.
    let filter = unsafe { capability_at(filter) };
    let queue = usize::try_from(queue).ok();
    // SAFETY: the caller's promise.
    unsafe { with(control, |control| control.assign_queue(&filter?, queue).map(|()| 0)) }
}

/// Revokes a filter's capability and all capabilities derived from it. Returns how many.
///
/// # Safety
/// `control` is null or a connection that was not closed. The text is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_revoke(
    control: *mut ix_control,
    capability: *const c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let capability = unsafe { capability_at(capability) };
    // SAFETY: the caller's promise.
    unsafe { with(control, |control| control.revoke(&capability?).map(|gone| gone as i64)) }
}

/// For operators: removes the filter with this number, or if it is negative, all filters. A
/// dataplane without filters passes all packets.
///
/// # Safety
/// `control` is null or a connection that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_filter_remove(control: *mut ix_control, filter: i64) -> i64 {
    let which = match u32::try_from(filter) {
        Ok(filter) => Ok(Some(filter)),
        Err(_) if filter < 0 => Ok(None),
        Err(_) => Err(ControlError::Invalid("no such number")),
    };
    let remove = |control: &mut Control| control.remove_filter(which?).map(|gone| gone as i64);
    // SAFETY: the caller's promise.
    unsafe { with(control, remove) }
}

/// Sets rates of a dataplane's vNIC. "none" removes a rate; NULL leaves it as it is.
///
/// # Safety
/// `control` is null or a connection that was not closed. The texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_rate(
    control: *mut ix_control,
    rx: *const c_char,
    tx: *const c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let (rx, tx) = unsafe { (text(rx), text(tx)) };
    // SAFETY: the caller's promise.
    unsafe { with(control, |control| control.rate(rx?, tx?).map(|()| 0)) }
}

/// Sets the rate of each flow of a dataplane's vNIC, whose packets are then paced evenly. "none"
/// removes it.
///
/// # Safety
/// `control` is null or a connection that was not closed. The text is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_rate_of_flows(
    control: *mut ix_control,
    flow: *const c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let flow = unsafe { text(flow) };
    let set = |control: &mut Control| control.rate_of_flows(must(flow)?).map(|()| 0);
    // SAFETY: the caller's promise.
    unsafe { with(control, set) }
}

/// Sets rates of a vNIC of a shared interface, which the kernel enforces, and its weight, 1 to
/// 1000, relative to the other vNICs while the interface is full. A rate that is NULL and a weight
/// of 0 stay as they are.
///
/// # Safety
/// `control` is null or a connection that was not closed. The texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_rate_of_vnic(
    control: *mut ix_control,
    name: *const c_char,
    rx: *const c_char,
    tx: *const c_char,
    weight: u32,
) -> i64 {
    // SAFETY: the caller's promise.
    let (name, rx, tx) = unsafe { (text(name), text(rx), text(tx)) };
    let weight = (weight != 0).then_some(weight);
    let set = |control: &mut Control| {
        let name = must(name)?;
        control.rate_of_vnic(name, rx?, tx?, weight).map(|()| 0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(control, set) }
}

/// Sets rates of one queue of a dataplane's vNIC, within its share of the vNIC's rates, and of each
/// flow on it. "none" removes a rate; NULL leaves it as it is.
///
/// # Safety
/// `control` is null or a connection that was not closed. The texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_rate_of_queue(
    control: *mut ix_control,
    queue: u32,
    rx: *const c_char,
    tx: *const c_char,
    flow: *const c_char,
) -> i64 {
    // SAFETY: the caller's promise.
    let (rx, tx, flow) = unsafe { (text(rx), text(tx), text(flow)) };
    let set =
        |control: &mut Control| control.rate_of_queue(queue as usize, rx?, tx?, flow?).map(|()| 0);
    // SAFETY: the caller's promise.
    unsafe { with(control, set) }
}

/// Writes limits, filters, rates and the numbers of refused requests as one line of JSON, ended by
/// a zero byte and truncated if it does not fit. Returns the length of the whole line without the
/// zero.
///
/// # Safety
/// `control` is null or a connection that was not closed. `to` is null or has room for `bytes`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_control_look(
    control: *mut ix_control,
    to: *mut c_char,
    bytes: usize,
) -> i64 {
    let look = |control: &mut Control| {
        let line = control.look()?;
        // SAFETY: a place of this size by the caller's promise.
        unsafe { write(&line, to, bytes) };
        Ok(line.len() as i64)
    };
    // SAFETY: the caller's promise.
    unsafe { with(control, look) }
}

/// Digits of a capability, and a zero.
const CAPABILITY_BYTES: usize = 33;

/// The connection behind a C program's pointer.
///
/// # Safety
/// `control` is null or a connection that was not closed.
unsafe fn with(
    control: *mut ix_control,
    work: impl FnOnce(&mut Control) -> Result<i64, ControlError>,
) -> i64 {
    // SAFETY: the caller's promise; only the caller uses it.
    let Some(ix_control(control)) = (unsafe { control.as_mut() }) else { return -error::INVALID };
    work(control).unwrap_or_else(|why| {
        remember(&why);
        -match why {
            ControlError::Lost(_) => error::UNREACHABLE,
            ControlError::Version(_) => error::NO_SYS,
            ControlError::Refused(_) => error::REFUSED,
            ControlError::Nonsense | ControlError::Invalid(_) => error::INVALID,
        }
    })
}

/// A C string, if there is one. An invalid string must not count as none, which would ask for less.
///
/// # Safety
/// `at` is null or a C string that outlives the result.
unsafe fn text<'a>(at: *const c_char) -> Result<Option<&'a str>, ControlError> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(at) }.to_str();
    text.map(Some).map_err(|_| ControlError::Invalid("a text is not UTF-8"))
}

/// A C string, or an error if it is null.
fn must(text: Result<Option<&str>, ControlError>) -> Result<&str, ControlError> {
    text?.ok_or(ControlError::Invalid("a text is missing"))
}

/// A capability's text.
///
/// # Safety
/// As `text`.
unsafe fn capability_at(at: *const c_char) -> Result<Capability, ControlError> {
    // SAFETY: the caller's promise.
    unsafe { text(at) }?.unwrap_or_default().parse()
}

/// Writes a text and a zero byte, truncated if it does not fit.
///
/// # Safety
/// `to` is null or has room for `bytes` bytes.
unsafe fn write(text: &str, to: *mut c_char, bytes: usize) {
    if to.is_null() || bytes == 0 {
        return;
    }
    let n = text.len().min(bytes - 1);
    // SAFETY: `n` and the zero are within `bytes`, and text and place do not overlap.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), n);
        to.add(n).write(0);
    }
}
