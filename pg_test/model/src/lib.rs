//! The seam between rows and shared memory as a model, which stateright explores exhaustively. Three sessions compete
//! for two resources and wait in their lines. Transactions commit, abort, are prepared and cross each other. Crashes,
//! deadlines and the worker come in every order.
//!
//! A [`System`](system::System) is the part of this that is explored at one time. It has a number of sessions and
//! clients, and of calls, prepared transactions and crashes. It may cut calls, ends of transactions and passes of the
//! worker into steps, with steps of others in between. Otherwise each of these is done at once. Transactions then still
//! overlap, and the worker still comes between any two calls, but no client is left halfway through a call. Each system
//! is explored to its end (`tests/explore.rs`).
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
//! | `Commit`, `Abort`              | PostgreSQL ends the transaction, and every process sees its end                        |
//! | `Settle`                       | `seam::end::at_end`: `Notes::settle` and each note's `Effect`                          |
//! | `Unlock`                       | PostgreSQL releases the locks of [`guard`](guards), after the callbacks                |
//! | `Prepare`, `CommitPrepared`, `RollbackPrepared` | PREPARE TRANSACTION with `watch_prepared`, and its ends, which call no callback |
//! | `Expire`                       | time, and `Word::expire` by a process that needs it                                    |
//! | `Beat`                         | `Word::beat`, if it were not atomic                                                    |
//! | `ReadRow` twice                | `session::row`, and `Call::slot_of` of the row that was read                           |
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
//! * **Time** is one bit for each deadline: passed or not. The deadline may pass at any step. So a heartbeat in time
//!   changes nothing and is no step. All orders of deadlines and steps are explored, so no length of a TTL, backoff or
//!   linger is missed. Promptness is for the tests of the server. The model keeps two facts about lengths: a tombstone
//!   stands longer than an old row lives, and no client trusts an answer beyond its session's deadline.
//! * **A stopped worker** takes no step, as any process may for any time. A terminated worker aborts its transaction
//!   after any of its steps. So neither has a state of its own.
//! * **Rows** have one committed version and at most one other, since a transaction that changes a row has locked it.
//!   Every look is at the latest snapshot, as in the code.
//! * **A call** has two steps if the code looks first and locks later, otherwise one. Between these the code only
//!   reads, or acts under locks that the model also has. Clients are all alike, and a transaction is for one session.
//! * **Fences and places** are numbers. Only their order matters, and the model tells apart only the numbers that its
//!   state still knows. Released rows always stay here; in the code they stay for row_retention.
//! * **Names**: sessions may be exchanged, and so may resources (see [`canon`]). A session without a trace makes room
//!   for a new one.
//! * **Not here**: drains, notifications, several places of one session in one line, and the snapshot of a fenced
//!   transaction. Savepoints are left out because a rollback to one posts as an abort does. Groups are left out because
//!   their hand-over makes the same grants.
//!
//! Grace, take-over by name and permits have a model of their own, [`succession`]. Together with all of this they would
//! make too many states.
//!
//! [`properties`] lists the promises, [`guards`] the parts of the code that keep them. A test takes out each guard once
//! (`tests/guards.rs`), and the checker finds the fault. Three guards each have a second one that does the same, and
//! are taken out together with it: `AbortPosts`, `FenceIsDrawnLast` and `Tombstone`.
//!
//! A slot may get its next session while a process still refers to it for the former one. This has a model of its own:
//! [`reuse`].
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
