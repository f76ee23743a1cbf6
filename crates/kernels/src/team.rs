//! A small team of threads that hands over a job in a fraction of a microsecond.
//!
//! A forward pass of a small model is dozens of operations of a few microseconds each; a general
//! thread pool costs more than that per operation. Here the workers spin for a moment after each
//! job, and then park, so an idle program is idle. What a job costs is the cache lines that travel
//! between cores, about 100 ns each: one tells a worker of the job, what it takes is counted in a line
//! of its own, and one tells the poster how much was done.
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
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence},
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

/// The most chunks of a job.
const MAX_CHUNKS: usize = (1 << TAKEN_BITS) - 1;

/// The bits of a [`Share`] that count; the others are the job's number, which do for 2⁴⁸ jobs: for
/// 50 years of small models at full speed.
const TAKEN_BITS: u32 = 16;

/// The bit of a state that says that the job is open.
const OPEN: u64 = 1;

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
/// With the panic of a chunk, if one panicked; the others still ran or were given up. If there are 2¹⁶
/// chunks or more.
pub fn run<F: Fn(usize) + Sync>(chunks: usize, body: &F) {
    let threads = threads().min(chunks);
    if threads > 1
        && let Some(mut post) = Team::get().enter()
    {
        assert!(chunks <= MAX_CHUNKS, "at most {MAX_CHUNKS} chunks, not {chunks}");
        let body = std::ptr::from_ref(body).cast();
        post.run(Job { body, call: call::<F>, threads, chunks });
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

/// A job: chunks of the shares of so many threads.
#[derive(Clone, Copy)]
struct Job {
    /// The closure.
    body: *const (),
    /// Calls it.
    call: unsafe fn(*const (), usize),
    threads: usize,
    chunks: usize,
}

/// # Safety
/// `body` points to an `F` that lives until the call returns.
unsafe fn call<F: Fn(usize) + Sync>(body: *const (), chunk: usize) {
    // SAFETY: by the contract.
    unsafe { (*body.cast::<F>())(chunk) }
}

/// The open job, in one cache line: a worker that waits for it gets all of it with the line that
/// tells that it is there. A sequence lock: [`OPEN`] is not set while the rest is written.
#[repr(align(128))]
struct Board {
    /// The number of the job, and whether it is open.
    state: AtomicU64,
    body: AtomicPtr<()>,
    call: AtomicPtr<()>,
    threads: AtomicUsize,
    chunks: AtomicUsize,
}

/// One thread's share of the chunks: a job's number, and how many of its chunks were taken. A share
/// with an older number is untouched, so nobody resets another thread's line.
#[repr(align(128))]
struct Share(AtomicU64);

/// How many chunks other threads than the poster have done.
#[repr(align(128))]
struct Done(AtomicUsize);

struct Team {
    /// Held by the thread whose job is running.
    busy: Mutex<Crew>,
    board: Board,
    shares: Vec<Share>,
    done: Done,
    failed: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
    parked: Vec<AtomicBool>,
}

/// The workers started so far.
struct Crew {
    workers: Vec<Thread>,
}

impl Board {
    /// The job of `state`, or None if it is over.
    fn read(&self, state: u64) -> Option<Job> {
        let body = self.body.load(Ordering::Relaxed);
        let call = self.call.load(Ordering::Relaxed);
        let threads = self.threads.load(Ordering::Relaxed);
        let chunks = self.chunks.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if self.state.load(Ordering::Relaxed) != state {
            return None;
        }
        // SAFETY: the state is the same before and after, so these are the fields of one job, and
        // `write` made the pointer of such a function.
        let call = unsafe { std::mem::transmute::<*mut (), unsafe fn(*const (), usize)>(call) };
        Some(Job { body, call, threads, chunks })
    }

    /// Opens job `number`.
    fn write(&self, job: Job, number: u64) {
        self.state.store(number << 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.body.store(job.body.cast_mut(), Ordering::Relaxed);
        self.call.store(job.call as *mut (), Ordering::Relaxed);
        self.threads.store(job.threads, Ordering::Relaxed);
        self.chunks.store(job.chunks, Ordering::Relaxed);
        self.state.store(number << 1 | OPEN, Ordering::SeqCst);
    }
}

impl Share {
    /// Takes the next of `len` chunks of job `number`.
    fn take(&self, number: u64, len: usize) -> Option<usize> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let taken = match (word >> TAKEN_BITS).cmp(&number) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => word & MAX_CHUNKS as u64,
                std::cmp::Ordering::Greater => return None,
            };
            if taken >= len as u64 {
                return None;
            }
            let more = number << TAKEN_BITS | (taken + 1);
            let swap =
                self.0.compare_exchange_weak(word, more, Ordering::AcqRel, Ordering::Relaxed);
            match swap {
                Ok(_) => return Some(taken as usize),
                Err(now) => word = now,
            }
        }
    }
}

impl Team {
    fn get() -> &'static Team {
        static TEAM: OnceLock<Team> = OnceLock::new();
        TEAM.get_or_init(|| Team {
            busy: Mutex::new(Crew { workers: Vec::new() }),
            board: Board {
                state: AtomicU64::new(0),
                body: AtomicPtr::default(),
                call: AtomicPtr::default(),
                threads: AtomicUsize::new(0),
                chunks: AtomicUsize::new(0),
            },
            shares: (0..MAX_THREADS).map(|_| Share(AtomicU64::new(0))).collect(),
            done: Done(AtomicUsize::new(0)),
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

    /// Runs chunks of job `number`, first of share `me`, then of the others', until none is left;
    /// returns how many. The first panic is kept for the poster, and chunks after it are not run.
    ///
    /// A chunk that was taken keeps its job open until it is counted. So whoever takes one has the
    /// closure as long as it runs, and whoever comes too late takes none.
    fn work(&self, me: usize, job: Job, number: u64) -> usize {
        let mut count = 0;
        let work = AssertUnwindSafe(|| {
            for turn in 0..job.threads {
                let owner = (me + turn) % job.threads;
                let share = share(job, owner);
                while let Some(chunk) = self.shares[owner].take(number, share.len()) {
                    count += 1;
                    if !self.failed.load(Ordering::Relaxed) {
                        // SAFETY: the poster waits for this chunk, and lets the closure live until
                        // then.
                        unsafe { (job.call)(job.body, share.start + chunk) };
                    }
                }
            }
        });
        if let Err(panic) = catch_unwind(work) {
            let mut payload = self.payload.lock().unwrap_or_else(|e| e.into_inner());
            payload.get_or_insert(panic);
            drop(payload);
            self.failed.store(true, Ordering::Relaxed);
            // The chunks that are left have to be counted too.
            count += self.work(me, job, number);
        }
        count
    }

    fn serve(&'static self, me: usize) -> ! {
        let mut seen = 0;
        loop {
            let state = self.await_job(me, seen);
            seen = state;
            let Some(job) = self.board.read(state) else { continue };
            if me < job.threads {
                let count = self.work(me, job, state >> 1);
                if count > 0 {
                    self.done.0.fetch_add(count, Ordering::Release);
                }
            }
        }
    }

    /// Waits for an open job that is not `seen`; spins first, then parks.
    fn await_job(&self, me: usize, seen: u64) -> u64 {
        let mut deadline = None;
        loop {
            for _ in 0..SPINS_PER_LOOK {
                let state = self.board.state.load(Ordering::Acquire);
                if state != seen && state & OPEN != 0 {
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
            let state = self.board.state.load(Ordering::SeqCst);
            if state == seen || state & OPEN == 0 {
                std::thread::park();
            }
            self.parked[me].store(false, Ordering::SeqCst);
            deadline = None;
        }
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
    fn run(&mut self, mut job: Job) {
        let team = self.team;
        job.threads = job.threads.min(self.hire(job.threads));
        team.failed.store(false, Ordering::Relaxed);
        team.done.0.store(0, Ordering::Relaxed);
        let number = (team.board.state.load(Ordering::Relaxed) >> 1) + 1;
        team.board.write(job, number);
        for (me, worker) in self.crew.workers.iter().enumerate().take(job.threads - 1) {
            if team.parked[me + 1].load(Ordering::SeqCst) {
                worker.unpark();
            }
        }
        // Returns whatever happens: the closure must outlive every worker's use of it.
        let own = team.work(0, job, number);
        self.wait_for(job.chunks - own);
        if team.failed.load(Ordering::Relaxed) {
            let panic = team.payload.lock().unwrap_or_else(|e| e.into_inner()).take();
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
        }
    }

    /// Waits until the workers have done `chunks`. All are taken; a worker that never came (the system
    /// gave its core away) is not waited for.
    fn wait_for(&self, chunks: usize) {
        let mut spins = 0_u32;
        while self.team.done.0.load(Ordering::Acquire) < chunks {
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
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

    /// Jobs too short for all workers to come in time, on more threads than cores: whoever comes late
    /// must find neither a chunk nor the closure of a job that is over. Each job's closure and counts are
    /// its own, and are gone with it.
    #[test]
    fn late_workers_take_nothing_of_a_job_that_is_over() {
        set_threads(MAX_THREADS);
        for job in 0..20_000_usize {
            let (threads, chunks) = (2 + job % 7, 1 + job * 31 % 40);
            let taken: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
            let marked = vec![job; 1 + job % 3];
            with_threads(threads, || {
                run(chunks, &|chunk: usize| {
                    assert!(marked.iter().all(|&mark| mark == job));
                    taken[chunk].fetch_add(1, Ordering::Relaxed);
                });
            });
            let taken: Vec<usize> = taken.into_iter().map(AtomicUsize::into_inner).collect();
            assert_eq!(taken, vec![1; chunks], "job {job}");
        }
    }

    /// A share that another job has touched since gives nothing to an older one, and all to a newer.
    #[test]
    fn shares_belong_to_the_newest_job() {
        let share = Share(AtomicU64::new(0));
        assert_eq!([(); 3].map(|()| share.take(5, 2)), [Some(0), Some(1), None]);
        assert_eq!(share.take(4, 2), None);
        assert_eq!(share.take(7, 1), Some(0));
        assert_eq!((share.take(5, 3), share.take(7, 1)), (None, None));
        assert_eq!(share.take(8, MAX_CHUNKS), Some(0));
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
