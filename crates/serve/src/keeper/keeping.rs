//! The keeper's side: threads that encrypt and decrypt what is asked in shared memory, which may say anything.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use claviger_engine::Secret;
use claviger_engine::volume::kept::{KeyRange, Keys, Refused, wipe_traces};
use rustix::thread::futex::{self, Flags};

use super::shared_sys::{ROOM, Request, SLOTS, Shared};
use super::{ANSWERED, ASKED, DECRYPT, DONE, ENCRYPT, REFUSED, WIPED};
use crate::spin::{Awake, Running, Sleeping, Spinner};

/// How long a thread looks for the next request before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Bytes that are copied, worked on and copied back at a time: they stay in the L1 cache.
const PIECE: usize = 16 << 10;

/// What the threads share.
pub(super) struct Kept {
    pub shared: Shared,
    /// Nothing once they have been wiped.
    pub keys: RwLock<Option<Keys>>,
    pub awake: Awake,
}

impl Kept {
    /// Starts a thread for each slot.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        for slot in 0..SLOTS {
            let kept = Arc::clone(self);
            thread::Builder::new()
                .name(format!("slot-{slot}"))
                .stack_size(128 << 10)
                .spawn(move || kept.serve(slot))?;
        }
        Ok(())
    }

    /// Wipes the keys, once no thread uses them.
    pub fn wipe(&self) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn serve(&self, slot: usize) {
        let _counted = Running::new(&self.awake);
        let request = self.shared.request(slot);
        // Made by the first request: most slots never get one.
        let mut room = None;
        let mut spinner = Spinner::default();
        loop {
            self.wait_for(request, &mut spinner);
            let answer = self.answer(slot, request, room.get_or_insert_with(|| Secret::zeroed(PIECE)));
            request.answer.store(answer, Ordering::Relaxed);
            // Either this is seen by an asker that is about to sleep, or that it sleeps is seen here.
            request.state.store(ANSWERED, Ordering::SeqCst);
            // An asker that is awake goes on meanwhile.
            wipe_traces();
            if request.asker_sleeps.load(Ordering::SeqCst) != 0 {
                let _ = futex::wake(&request.state, Flags::empty(), 1);
            }
        }
    }

    fn wait_for(&self, request: &Request, spinner: &mut Spinner) {
        let asked = || request.state.load(Ordering::SeqCst) == ASKED;
        let spun = spinner.spin(&self.awake, SPIN, || Ok(asked().then_some(())));
        if asked() || spun.is_ok_and(|found| found.is_some()) {
            return;
        }
        let _asleep = Sleeping::new(&self.awake);
        request.keeper_sleeps.store(1, Ordering::SeqCst);
        while !asked() {
            // Whatever else somebody has written there is waited on no longer than until it changes.
            let seen = request.state.load(Ordering::SeqCst);
            if seen != ASKED {
                let _ = futex::wait(&request.state, Flags::empty(), seen, None);
            }
        }
        request.keeper_sleeps.store(0, Ordering::SeqCst);
    }

    /// Carries out what is asked. Each field is read once: what it says later counts for nothing.
    fn answer(&self, slot: usize, request: &Request, room: &mut [u8]) -> u32 {
        let encrypt = match request.order.load(Ordering::Acquire) {
            DECRYPT => false,
            ENCRYPT => true,
            _ => return REFUSED,
        };
        let (segment, len) = (request.segment.load(Ordering::Relaxed), request.len.load(Ordering::Relaxed) as usize);
        let into = request.into.load(Ordering::Relaxed);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let Some(keys) = &*keys else { return WIPED };
        if len > ROOM {
            return REFUSED;
        }
        match keys.range(encrypt, segment, into, len) {
            Ok(range) if range.sector_size() <= room.len() => {
                self.carry_out(&range, slot, len, room);
                DONE
            }
            Ok(_) | Err(Refused) => REFUSED,
        }
    }

    /// In memory of this process, piece by piece.
    fn carry_out(&self, range: &KeyRange<'_>, slot: usize, len: usize, room: &mut [u8]) {
        let piece = room.len() / range.sector_size() * range.sector_size();
        for past in (0..len).step_by(piece) {
            let run = &mut room[..piece.min(len - past)];
            self.shared.copy_out(slot, past, run);
            range.carry_out(past as u64, run);
            self.shared.copy_in(slot, past, run);
        }
    }
}
