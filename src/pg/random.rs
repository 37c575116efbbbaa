//! PostgreSQL's random numbers.

use pgrx::pg_sys;

/// Returns bytes of the strong source, which cannot be guessed.
pub fn strong<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: writes as many bytes as there are
    if !unsafe { pg_sys::pg_strong_random(bytes.as_mut_ptr().cast(), N) } {
        pgrx::error!("could not generate random values");
    }
    bytes
}

/// Returns a random number below a bound. PostgreSQL seeds this generator at random in each process.
pub fn below(bound: usize) -> usize {
    let most = (bound as u64).saturating_sub(1);
    // SAFETY: the state is this process's own
    unsafe { pg_sys::pg_prng_uint64_range(&raw mut pg_sys::pg_global_prng_state, 0, most) as usize }
}
