package lease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"
)

var errHasRun = errors.New("lease: the key was begun before, and what became of it could not be stored")

// Outcome tells what became of a run-once key.
type Outcome struct {
	First  bool            // this call ran the function
	State  string          // done, running, failed or in_doubt
	Result json.RawMessage // of a key that is done; may be nil
}

// OnceOption changes what [Leases.Once] does.
type OnceOption int

// RetryInDoubt runs the function again if the process that ran it has ended without a word: at least once.
const RetryInDoubt OnceOption = 1

// Once runs a function once for a key, whichever process calls it; or tells what became of the key. The function
// returns what is kept as the key's result, in JSON. Its context is cancelled when the trust in the session ends; pass
// its fence to systems that can refuse an older one. Two calls for one key in a process follow one another.
//
// If the function fails, Once returns its error, and the next call runs it again. But after [ErrLost] and [ErrUnsure],
// and if the result cannot be kept, the key stays failed or in doubt, as the effect may have happened. While the server
// is away, Once returns a TTL after that context was cancelled; what is to be stored is stored in the background.
func (l *Leases) Once(ctx context.Context, key string, work func(ctx context.Context, fence int64) (any, error),
	options ...OnceOption) (Outcome, error) {
	end, err := l.begin(ctx, "once "+key, true)
	if err != nil {
		return Outcome{}, err
	}
	type result struct {
		run     attempt
		session string
		err     error
	}
	begun := make(chan result, 1)
	go func() {
		run, session, err := l.beginRun(ctx, key, slices.Contains(options, RetryInDoubt))
		begun <- result{run, session, err}
	}()
	select {
	case got := <-begun:
		if got.err == nil && got.run.Fence != 0 {
			return l.execute(ctx, key, got.session, got.run.Fence, work, end)
		}
		end()
		return Outcome{State: got.run.State, Result: got.run.Result}, got.err
	case <-ctx.Done(): // what a call that is under way begins is given back
		go func() {
			defer end()
			if got := <-begun; got.run.Fence != 0 {
				l.failRun(key, got.session, got.run.Fence, context.Cause(ctx), true)
			}
		}()
		return Outcome{}, context.Cause(ctx)
	}
}

type attempt struct {
	State  string
	Result json.RawMessage
	Fence  int64 // 0 without one
}

// beginRun asks for an attempt, or for what became of the key.
func (l *Leases) beginRun(ctx context.Context, key string, inDoubt bool) (attempt, string, error) {
	for {
		session, asked, err := l.ready(ctx)
		if err != nil {
			return attempt{}, "", err
		}
		rows, err := query[attempt](l.life, l, session, `SELECT state, result, coalesce(fence, 0)
			FROM eskit_lease.execution_begin($1::text, $2::uuid, $3::boolean)`, key, session, inDoubt)
		if err == nil {
			return rows[0], session, nil
		}
		if !errors.Is(err, ErrLost) {
			return attempt{}, "", err
		}
		select {
		case <-asked:
		case <-ctx.Done():
		}
	}
}

// execute runs an attempt under its fence.
func (l *Leases) execute(ctx context.Context, key, session string, fence int64,
	work func(context.Context, int64) (any, error), end func()) (Outcome, error) {
	outcome, retry, value := Outcome{State: "in_doubt"}, true, any(nil)
	s, err := l.newScope(ctx, key, fence, session)
	if err == nil {
		defer s.cancel(nil)
		ctx = s.ctx
		if l.hasRun(key, fence) {
			err, retry = errHasRun, false
		}
	}
	if err == nil {
		outcome.First = true
		returned := false
		defer func() {
			if !returned { // it panics, and may run again, but not under this fence
				go func() {
					defer end()
					l.failRun(key, session, fence, errors.New("the function panicked"), true)
				}()
			}
		}()
		value, err = work(ctx, fence)
		returned = true
		err = s.judge(err)
		retry = err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrUnsure)
	}
	type told struct {
		Outcome
		err error
	}
	done := make(chan told, 1)
	go func() {
		defer end()
		told := told{outcome, err}
		if err == nil {
			told.Result, told.err = l.finishRun(key, session, fence, value)
		}
		if told.err == nil {
			told.State = "done"
		} else if told.err = s.judge(told.err); l.failRun(key, session, fence, told.err, retry) {
			told.State = "failed"
		}
		done <- told
	}()
	select {
	case told := <-done:
		return told.Outcome, told.err
	case <-ctx.Done():
	}
	select {
	case told := <-done:
		return told.Outcome, told.err
	case <-time.After(l.ttl): // the rest goes on in the background
		return outcome, cmp.Or(err, s.judge(context.Cause(ctx)))
	}
}

// hasRun tells whether a function may have run under a fence: a session whose attempt could not be ended gets it again.
func (l *Leases) hasRun(key string, fence int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ran[key] != fence {
		delete(l.ran, key)
	}
	return l.ran[key] == fence
}

// finishRun stores the result of a function.
func (l *Leases) finishRun(key, session string, fence int64, value any) (json.RawMessage, error) {
	result, err := json.Marshal(value)
	if err == nil {
		err = l.exec(session, `SELECT eskit_lease.execution_finish($1::text, $2::bigint, $3::jsonb)`,
			key, fence, string(result))
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}

// failRun stores that an attempt failed, and tells whether it could.
func (l *Leases) failRun(key, session string, fence int64, why error, retry bool) bool {
	err := l.fail(session, `SELECT eskit_lease.execution_fail($1::text, $2::bigint, $4::text, $3::boolean)`,
		why, key, fence, retry)
	l.complain("a failed run-once key stays in doubt", err)
	if err != nil && l.Session() == session {
		l.mu.Lock()
		l.ran[key] = fence
		l.mu.Unlock()
	}
	return err == nil
}
