package lease

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
)

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
// and if the result cannot be kept, the key stays failed or in doubt, as the effect may have happened.
func (l *Leases) Once(ctx context.Context, key string, work func(ctx context.Context, fence int64) (any, error),
	options ...OnceOption) (Outcome, error) {
	end, err := l.begin(ctx, "once "+key, true)
	if err != nil {
		return Outcome{}, err
	}
	defer end()
	for {
		session, asked, err := l.ready(ctx)
		if err != nil {
			return Outcome{}, err
		}
		rows, err := query[attempt](l.life, l, session, `SELECT state, result, coalesce(fence, 0)
			FROM eskit_lease.execution_begin($1::text, $2::uuid, $3::boolean)`,
			key, session, slices.Contains(options, RetryInDoubt))
		switch {
		case errors.Is(err, ErrLost):
			select {
			case <-asked:
			case <-ctx.Done():
			}
		case err != nil:
			return Outcome{}, err
		case rows[0].Fence == 0:
			return Outcome{State: rows[0].State, Result: rows[0].Result}, nil
		default:
			return l.execute(ctx, key, session, rows[0].Fence, work)
		}
	}
}

type attempt struct {
	State  string
	Result json.RawMessage
	Fence  int64 // 0 without one
}

// execute runs an attempt under its fence.
func (l *Leases) execute(ctx context.Context, key, session string, fence int64,
	work func(context.Context, int64) (any, error)) (Outcome, error) {
	s, err := l.newScope(ctx, key, fence, session)
	retry, value := true, any(nil)
	if err == nil {
		defer s.cancel(nil)
		value, err = work(s.ctx, fence)
		err = s.judge(err)
		retry = err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrUnsure)
	}
	var result []byte
	if err == nil {
		result, err = json.Marshal(value)
	}
	if err == nil {
		err = s.judge(l.exec(session, `SELECT eskit_lease.execution_finish($1::text, $2::bigint, $3::jsonb)`,
			key, fence, string(result)))
	}
	if err == nil {
		return Outcome{First: true, State: "done", Result: result}, nil
	}
	failed := l.exec(session, `SELECT eskit_lease.execution_fail($1::text, $2::bigint, $3::text, $4::boolean)`,
		key, fence, err.Error(), retry)
	l.complain("a failed run-once key stays in doubt", failed)
	if failed != nil {
		return Outcome{First: true, State: "in_doubt"}, err
	}
	return Outcome{First: true, State: "failed"}, err
}
