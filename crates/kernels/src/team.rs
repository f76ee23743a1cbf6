//! A small team of threads that hands over a job in about a microsecond.
//!
//! A forward pass of a small model is hundreds of operations of a few microseconds each; a general
//! thread pool costs more than that per operation. Here the workers spin for a moment after each
//! job, so the next one costs a cache line or two, and then park, so an idle program is idle.
//!
//! # Threads split outputs, never a reduction
//! A job is a number of *chunks*, and each chunk owns its outputs. Which chunks exist depends on
//! the job alone; which thread runs one cannot matter, because no value crosses a chunk. Every
//! thread starts with its own share, always the same one (so that its part of the weights stays in
//! its cache), and helps the others when it is done (so that a thread the system has put aside does
//! not stop the rest).
//!
//! # Nesting and sharing
//! There is one team. A job posted while the team is busy, from inside a job or from another
//! thread, runs on the thread that posted it.

use std::{
    any::Any,
    cell::Cell,
    marker::PhantomData,
    num::NonZero,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex, MutexGuard, OnceLock, TryLockError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::Thread,
    time::{Duration, Instant},
};

/// The most threads a team can have.
pub const MAX_THREADS: usize = 64;

/// How long a worker spins for the next job before it parks.
const SPIN: Duration = Duration::from_millis(1);

/// Spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 32;

/// The low half of the state: whether workers may join, and how many are in.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 32;

/// The number asked for; 0 before anyone asked.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Sets how many threads, the caller included, share the work from now on.
///
/// `threads` is cut to 1..=[`MAX_THREADS`]. The results are the same for any number.
pub fn set_threads(threads: usize) {
    THREADS.store(threads.clamp(1, MAX_THREADS), Ordering::Relaxed);
}

/// How many threads share the work of this thread's jobs: the number set, or the machine's.
#[must_use]
pub fn threads() -> usize {
    let set = match THREADS.load(Ordering::Relaxed) {
        0 => {
            let machine = std::thread::available_parallelism().map_or(1, NonZero::get);
            set_threads(machine);
            machine.clamp(1, MAX_THREADS)
        }
        set => set,
    };
    set.min(LIMIT.get())
}

/// Runs `f` with at most `threads` threads (at least 1) for the jobs that this thread posts.
pub fn with_threads<T>(threads: usize, f: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(threads.max(1)));
    f()
}

/// Runs `body` for every chunk in `0..chunks` and returns when all are done.
///
/// # Panics
/// With the panic of a chunk, if one panicked; the others still ran or were given up.
pub fn run(chunks: usize, body: &(dyn Fn(usize) + Sync)) {
    let threads = threads().min(chunks);
    if threads > 1
        && let Some(mut post) = Team::get().enter()
    {
        post.run(threads, chunks, body);
    } else {
        (0..chunks).for_each(body);
    }
}

/// A mutable slice whose elements several threads write, each its own.
pub(crate) struct Scatter<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Scatter` gives access to `T`s only through methods whose callers promise that no
// other thread uses the same elements, so sharing it sends `T`s to other threads and no more.
unsafe impl<T: Send> Sync for Scatter<'_, T> {}

impl<'a, T> Scatter<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// Nobody else, this thread's other slices included, uses these elements while the slice lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "outside of the outputs");
        // SAFETY: in bounds by the assertion; not aliased, by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// The job that is open: what every worker that joins needs.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    threads: usize,
    chunks: usize,
}

/// One thread's share of the chunks: the next one not taken.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
}

struct Team {
    /// Held by the thread whose job is running.
    busy: Mutex<Crew>,
    /// Epoch in the high half; [`OPEN`] and the number of workers inside in the low half.
    state: AtomicU64,
    job: JobCell,
    shares: Vec<Share>,
    failed: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
    parked: Vec<AtomicBool>,
}

/// The workers started so far.
struct Crew {
    workers: Vec<Thread>,
}

struct JobCell(std::cell::UnsafeCell<Option<Job>>);

// SAFETY: the cell is written only by the holder of `busy` while the state is closed and nobody is
// inside, and read only by workers that are inside; the state's acquire and release order the two.
unsafe impl Sync for JobCell {}
// SAFETY: the pointer in a `Job` is to a `Sync` closure, used only while its owner waits.
unsafe impl Send for JobCell {}

impl Team {
    fn get() -> &'static Team {
        static TEAM: OnceLock<Team> = OnceLock::new();
        TEAM.get_or_init(|| Team {
            busy: Mutex::new(Crew { workers: Vec::new() }),
            state: AtomicU64::new(0),
            job: JobCell(std::cell::UnsafeCell::new(None)),
            shares: (0..MAX_THREADS).map(|_| Share { next: AtomicUsize::new(0) }).collect(),
            failed: AtomicBool::new(false),
            payload: Mutex::new(None),
            parked: (0..MAX_THREADS).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    fn enter(&'static self) -> Option<Post> {
        match self.busy.try_lock() {
            Ok(crew) => Some(Post { team: self, crew }),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(Post { team: self, crew: poisoned.into_inner() })
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes chunks, first from share `me`, then from the others', until none is left.
    fn work(&self, me: usize, job: Job, body: &(dyn Fn(usize) + Sync)) {
        for turn in 0..job.threads {
            let owner = (me + turn) % job.threads;
            let end = share(job, owner).end;
            loop {
                let chunk = self.shares[owner].next.fetch_add(1, Ordering::Relaxed);
                if chunk >= end || self.failed.load(Ordering::Relaxed) {
                    break;
                }
                body(chunk);
            }
        }
    }

    /// [`work`](Self::work), keeping the first panic for the thread that posted the job.
    fn work_caught(&self, me: usize, job: Job, body: &(dyn Fn(usize) + Sync)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(me, job, body))) {
            let mut payload = self.payload.lock().unwrap_or_else(|e| e.into_inner());
            payload.get_or_insert(panic);
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn serve(&'static self, me: usize) -> ! {
        let mut seen = 0;
        loop {
            let state = self.await_job(me, seen);
            seen = state / EPOCH;
            if !self.join(state) {
                continue;
            }
            // SAFETY: this worker is inside, so the poster waits in `close` and neither rewrites
            // the cell nor lets the closure go.
            let job = unsafe { *self.job.0.get() };
            if let Some(job) = job
                && me < job.threads
            {
                // SAFETY: as above.
                self.work_caught(me, job, unsafe { &*job.body });
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an epoch after `seen`; spins first, then parks.
    fn await_job(&self, me: usize, seen: u64) -> u64 {
        let mut deadline = None;
        loop {
            for _ in 0..SPINS_PER_LOOK {
                let state = self.state.load(Ordering::Acquire);
                if state / EPOCH != seen && state & OPEN != 0 {
                    return state;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now < *deadline.get_or_insert(now + SPIN) {
                continue;
            }
            // Announce first, look again, then park: the poster opens first, then looks for parked
            // workers, and both orders are sequentially consistent, so one sees the other.
            self.parked[me].store(true, Ordering::SeqCst);
            let state = self.state.load(Ordering::SeqCst);
            if state / EPOCH == seen || state & OPEN == 0 {
                std::thread::park();
            }
            self.parked[me].store(false, Ordering::SeqCst);
            deadline = None;
        }
    }

    /// Goes inside the job of `state`, unless it was closed in the meantime.
    fn join(&self, mut state: u64) -> bool {
        let epoch = state / EPOCH;
        while state / EPOCH == epoch && state & OPEN != 0 {
            match self.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }
}

fn share(job: Job, owner: usize) -> Range<usize> {
    job.chunks * owner / job.threads..job.chunks * (owner + 1) / job.threads
}

/// The right to post one job at a time.
struct Post {
    team: &'static Team,
    crew: MutexGuard<'static, Crew>,
}

impl Post {
    fn run(&mut self, threads: usize, chunks: usize, body: &(dyn Fn(usize) + Sync)) {
        let team = self.team;
        let threads = threads.min(self.hire(threads));
        // SAFETY: this only lengthens the closure's lifetime. Workers use the pointer while they
        // are inside the job, and `close` below returns after the last one left.
        let body_static = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(
                body,
            )
        };
        let job = Job { body: body_static, threads, chunks };
        for owner in 0..threads {
            team.shares[owner].next.store(share(job, owner).start, Ordering::Relaxed);
        }
        team.failed.store(false, Ordering::Relaxed);
        // SAFETY: the state is closed and nobody is inside, so nobody reads; `busy` is held, so
        // nobody else writes.
        unsafe { *team.job.0.get() = Some(job) };
        let epoch = team.state.load(Ordering::Relaxed) / EPOCH + 1;
        team.state.store((epoch << 32) | OPEN, Ordering::SeqCst);
        for (me, worker) in self.crew.workers.iter().enumerate().take(threads - 1) {
            if team.parked[me + 1].load(Ordering::SeqCst) {
                worker.unpark();
            }
        }
        // Caught, so that the borrow of `body` outlives every worker's use of it.
        team.work_caught(0, job, body);
        self.close();
        let panic = {
            let mut payload = team.payload.lock().unwrap_or_else(|e| e.into_inner());
            payload.take()
        };
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Lets no more workers in and waits until those inside have left. A worker that never came
    /// (the system gave its core away) is not waited for.
    fn close(&self) {
        let mut state = self.team.state.fetch_and(!OPEN, Ordering::AcqRel) & !OPEN;
        let mut spins = 0_u32;
        while state & JOINED != 0 {
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            state = self.team.state.load(Ordering::Acquire);
        }
    }

    /// Starts workers until there are `threads - 1`, and returns how many threads there are.
    fn hire(&mut self, threads: usize) -> usize {
        while self.crew.workers.len() + 1 < threads {
            let me = self.crew.workers.len() + 1;
            let team = self.team;
            let started = std::thread::Builder::new()
                .name(format!("draftproof-{me}"))
                .spawn(move || team.serve(me));
            match started {
                Ok(handle) => self.crew.workers.push(handle.thread().clone()),
                Err(_) => break,
            }
        }
        self.crew.workers.len() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(threads: usize, chunks: usize) -> Vec<usize> {
        let seen: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
        with_threads(threads, || {
            run(chunks, &|i| {
                seen[i].fetch_add(1, Ordering::Relaxed);
            });
        });
        seen.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_chunk_runs_once() {
        set_threads(4);
        for threads in 1..=4 {
            for chunks in [0, 1, 2, 3, 7, 64, 1000] {
                assert!(counts(threads, chunks).iter().all(|&n| n == 1));
            }
        }
        for _ in 0..2000 {
            assert_eq!(counts(4, 5), [1; 5]);
        }
    }

    #[test]
    fn jobs_from_inside_a_job_and_from_other_threads_run() {
        set_threads(4);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let total = AtomicUsize::new(0);
                        run(4, &|i| {
                            run(3, &|j| {
                                total.fetch_add(10 * i + j, Ordering::Relaxed);
                            });
                        });
                        assert_eq!(total.into_inner(), 3 * 60 + 4 * 3);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_poster_and_the_team_goes_on() {
        set_threads(4);
        for bad in 0..6 {
            let caught = catch_unwind(|| run(6, &|i| assert!(i != bad, "chunk {i}")));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("chunk {bad}"));
            assert_eq!(counts(4, 9), [1; 9]);
        }
    }

    #[test]
    fn parked_workers_wake() {
        set_threads(4);
        for _ in 0..5 {
            std::thread::sleep(SPIN * 20);
            let who: Mutex<Vec<_>> = Mutex::new(Vec::new());
            run(64, &|_| {
                std::thread::sleep(Duration::from_micros(200));
                who.lock().unwrap().push(std::thread::current().id());
            });
            let mut who = who.into_inner().unwrap();
            who.sort_unstable_by_key(|id| format!("{id:?}"));
            who.dedup();
            assert!(!who.is_empty());
        }
    }
}
