//! The seam between rows and shared memory as a model, which stateright explores exhaustively: three sessions, two resources and their
//! queues, transactions that commit, abort, are prepared and cross each other, crashes, deadlines, and the worker, in every order.
//!
//! How much of that is explored at one time is said by a [`System`](system::System): who there is, how many calls of clients, prepared
//! transactions and crashes there are on the way, and what is cut into steps. Calls, the ends of transactions and the passes of the worker
//! are in steps, with others' in between, or each is done at once: then transactions still overlap, and the worker still comes in between
//! any two calls, but no client is left halfway through one. Each such system is explored to its end
//! (`tests/explore.rs`).
//!
//! # What stands for what
//!
//! | step of the model              | in the code                                                                            |
//! |--------------------------------|----------------------------------------------------------------------------------------|
//! | `Call(Open)`                   | `session::open`                                                                        |
//! | `Call(Acquire)`, `Take`        | `acquire::acquire_batch` up to the look; `Taking::take` with `grantee`, `first_in_line`, `grant::claim` |
//! | `Call(Release)`, `LetGo`       | `release::release_seat` up to `fence::exclude`; `release::release` with `hand_over` and `free` |
//! | `Call(Close)`, `EndSession`    | `session_close` up to S; `session::end` with `sweep::dissolve`                          |
//! | `Call(FenceCheck)`, `Check`    | `fence::check` up to the look; from `try_lock` of S and F on                             |
//! | `Call(Cancel)`, `Call(Wait)`   | `line::cancel`; `handover::judge_places`                                               |
//! | `Freeze`                       | `seam::end::before_end`: pre-commit and pre-prepare                                    |
//! | `Commit`, `Abort`              | PostgreSQL ends the transaction, and all see it so                                     |
//! | `Settle`                       | `seam::end::at_end`: `Notes::settle` and each note's `Effect`                          |
//! | `Unlock`                       | PostgreSQL lets go of the locks of [`guard`](guards), which is after the callbacks       |
//! | `Prepare`, `CommitPrepared`, `RollbackPrepared` | PREPARE TRANSACTION with `watch_prepared`, and its ends, which call none |
//! | `Expire`                       | time, and `Word::expire` by a process that needs it                                    |
//! | `Beat`                         | `Word::beat`, where that is not atomic                                                 |
//! | `ReadRow` twice                | `session::row`, and `Call::slot_of` of what was read                                   |
//! | `KeepDead`                     | `Call::slot_of` of a session whose lease has been taken over                              |
//! | `Reclaim`                      | `Shared::reclaim` of a tombstone                                                       |
//! | `Crash`                        | shared memory is made anew; rows and prepared transactions are recovered                 |
//! | `WatchPrepared`                | `Launcher::watch_prepared`                                                             |
//! | `TakeDirty`                    | `dead_sessions`, `take_flags`, `look_through` with `settle_sessions`, `take_dirty`       |
//! | `Judge`                        | `judge_dirty` with `hand_over`, `post_retry` and `leave_own`                           |
//! | `Sweep`                        | `dissolve_dead`, `bury` and `death::record`                                            |
//!
//! # What it leaves out, and why it may
//!
//! * **Time** is one bit for each deadline: it has passed or not, and it passes whenever it likes. A heartbeat in time then changes
//!   nothing and is no step. All orders of deadlines and steps are explored, so no length of a TTL, backoff or linger is missed; that
//!   things are prompt is for the tests of the server. Two facts about lengths are kept: a tombstone stands longer than an old row lives,
//!   and no client trusts an answer beyond its session's deadline.
//! * **A worker that is stopped** is one that takes no step, and any process may take none for any time. One that is terminated aborts
//!   its transaction, after any of its steps. So neither has a state of its own.
//! * **Rows** have one version that is committed and at most one that is not, since a transaction that changes a row
//!   has it locked. Every look is at the latest snapshot, as in the code.
//! * **A call** is cut in two where the code looks first and locks later, and is one step otherwise: what it does in between is only
//!   reading, or under locks that the model has too. Clients are all alike, and a transaction is for one session.
//! * **Fences and places** are numbers. Only their order matters, and the model tells apart only those that its state
//!   still knows. Released rows are kept for ever here, as row_retention keeps them.
//! * **Names**: sessions may be exchanged, and resources (see [`canon`]). A session that has left no trace makes room for a new one.
//! * **Not here**: savepoints (a rollback to one posts what it takes back, as an abort does), drains, groups (whose hand-over comes to the
//!   same grants), several places of one session in one queue, notifications, and
//!   the snapshot that a fenced transaction works on.
//!
//! Grace, take-over by name and permits have a model of their own, [`succession`]: with all of this around them there would be too
//! many states.
//!
//! What is to hold is in [`properties`], and what is done so that it does in [`guards`]. Each guard is taken out once (`tests/guards.rs`), and
//! what goes wrong is found. Three of them are doubled by another, and are taken out together with it: `AbortPosts`, `FenceIsDrawnLast` and
//! `Tombstone`.
//!
//! That a slot has its next session at once, even if a process has just looked at it for the former, is a model of its
//! own: [`reuse`].
//!
//! Files, low to high: set, guards, state, system, reuse, succession, handover, life, client, end, worker, steps,
//! properties, canon, explore, check, lib.

pub mod canon;
pub mod check;
pub mod client;
pub mod end;
pub mod explore;
pub mod guards;
pub mod handover;
pub mod life;
pub mod properties;
pub mod reuse;
pub mod set;
pub mod state;
pub mod steps;
pub mod succession;
pub mod system;
pub mod worker;
