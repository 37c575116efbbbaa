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

const (
	// RetryInDoubt runs the function again if the process that ran it has ended without a word: at least once.
	RetryInDoubt OnceOption = iota + 1
	// RetryFailed lets the next call run the function again if it fails. Without it the key stays failed.
	RetryFailed
)

// Once runs a function once for a key, at most, whichever process calls it; or tells what became of the key. The
// function returns what is kept as the key's result, in JSON. Its context is cancelled when the trust in the session
// ends; pass its fence to systems that can refuse an older one. Two calls for one key in a process follow one another.
//
// If the function fails, the key is failed, and Once returns its error.
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
		rows, err := query[struct {
			State  string
			Result json.RawMessage
			Fence  int64 // 0 without one
		}](l.life, l, session, `SELECT state, result, coalesce(fence, 0)
			FROM eskit_lease.execution_begin($1::text, $2::uuid, $3::boolean)`,
			key, session, slices.Contains(options, RetryInDoubt))
		switch {
		case errors.Is(err, ErrLost):
			select {
			case <-asked:
			case <-ctx.Done():
			}
			continue
		case err != nil:
			return Outcome{}, err
		case rows[0].Fence == 0:
			return Outcome{State: rows[0].State, Result: rows[0].Result}, nil
		}
		return l.execute(ctx, key, session, rows[0].Fence, slices.Contains(options, RetryFailed), work)
	}
}

// execute runs an attempt under its fence.
func (l *Leases) execute(ctx context.Context, key, session string, fence int64, retry bool,
	work func(context.Context, int64) (any, error)) (Outcome, error) {
	s, err := l.newScope(ctx, key, fence, session)
	var value any
	if err == nil {
		defer s.cancel(nil)
		value, err = work(s.ctx, fence)
	} else {
		retry = true // nothing was run
	}
	var text []byte
	if err == nil {
		text, err = json.Marshal(value)
	}
	if err == nil {
		err = s.judge(l.exec(session, `SELECT eskit_lease.execution_finish($1::text, $2::bigint, $3::jsonb)`,
			key, fence, string(text)))
	}
	if err == nil {
		return Outcome{First: true, State: "done", Result: text}, nil
	}
	failed := l.exec(session, `SELECT eskit_lease.execution_fail($1::text, $2::bigint, $3::text, $4::boolean)`,
		key, fence, err.Error(), retry)
	if failed != nil {
		l.complain("a run-once key stays in doubt", failed)
		return Outcome{First: true, State: "in_doubt"}, err
	}
	return Outcome{First: true, State: "failed"}, err
}
