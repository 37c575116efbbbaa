package lease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
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
	r := &run{Leases: l, key: key, inDoubt: slices.Contains(options, RetryInDoubt), ended: make(chan ending, 1)}
	begun := make(chan struct{})
	turn, err := l.verb(ctx, "once "+key, true, func() {
		r.err = l.follow(ctx, nil, r.begin)
		close(begun)
		if r.attempt.Fence != 0 {
			r.store(<-r.ended)
		}
	})
	if err != nil {
		return Outcome{}, err
	}
	select {
	case <-begun:
	case <-ctx.Done(): // what a call that is under way begins is given back
		r.ended <- ending{err: context.Cause(ctx), retry: true}
		return Outcome{}, context.Cause(ctx)
	}
	if r.attempt.Fence == 0 {
		return Outcome{State: r.attempt.State, Result: r.attempt.Result}, r.err
	}
	first := false
	if r.scope, err = l.newScope(ctx, key, r.attempt.Fence, r.session); err != nil {
		r.ended <- ending{err: err, retry: true}
	} else {
		first, err = r.execute(work)
	}
	defer r.scope.cancel(nil)
	if !l.isOver(r.scope.ctx, turn) { // the rest goes on in the background
		return Outcome{First: first, State: "in_doubt"}, cmp.Or(err, r.scope.lost())
	}
	return Outcome{first, r.attempt.State, r.attempt.Result}, r.err
}

// attempt is what execution_begin answers, and later what becomes of it.
type attempt struct {
	State  string
	Result json.RawMessage
	Fence  int64 // 0 without one
}

// ending is how a function ended.
type ending struct {
	result json.RawMessage
	err    error
	retry  bool
}

// run is a call of Once.
type run struct {
	*Leases
	attempt attempt
	key     string
	inDoubt bool
	session string
	scope   *Scope
	ended   chan ending
	err     error
}

// begin asks for an attempt, or for what became of the key.
func (r *run) begin(session string, _ <-chan struct{}) (bool, error) {
	r.second.refresh()
	rows, err := query[attempt](r.Leases, session, `SELECT state, result, coalesce(fence, 0)
		FROM eskit_lease.execution_begin($1::text, $2::uuid, $3::boolean)`, r.key, session, r.inDoubt)
	if err != nil {
		return stays(err), err
	}
	r.session, r.attempt = session, rows[0]
	return true, nil
}

// execute calls the function, and has its end stored, also if it panics: but no fence serves twice.
func (r *run) execute(work func(context.Context, int64) (any, error)) (first bool, err error) {
	if ran, _ := r.used.Swap("once "+r.key, r.attempt.Fence); ran == r.attempt.Fence {
		r.ended <- ending{err: errHasRun}
		return false, errHasRun
	}
	ended := ending{err: errors.New("the function panicked"), retry: true}
	defer func() { r.ended <- ended }()
	value, err := work(r.scope.ctx, r.attempt.Fence)
	err = r.scope.judge(err)
	ended.retry = err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrUnsure)
	if err == nil {
		ended.result, err = json.Marshal(value)
	}
	ended.err = err
	return true, err
}

// store tells the server the result of a function, or its error.
func (r *run) store(ended ending) {
	if r.err = ended.err; r.err == nil {
		r.err = r.scope.judge(r.exec(r.session, `SELECT eskit_lease.execution_finish($1::text, $2::bigint, $3::jsonb)`,
			r.key, r.attempt.Fence, string(ended.result)))
	}
	var failed error
	if r.attempt.State, r.attempt.Result = "done", ended.result; r.err != nil {
		r.attempt.State, r.attempt.Result = "failed", nil
		failed = r.fail(r.session, `SELECT eskit_lease.execution_fail($1::text, $2::bigint, $4::text, $3::boolean)`,
			r.err, r.key, r.attempt.Fence, ended.retry)
	}
	if failed != nil {
		r.warn("a failed run-once key stays in doubt", failed)
		r.attempt.State = "in_doubt"
	}
	if failed == nil || errors.Is(failed, ErrLost) {
		r.used.Delete("once " + r.key)
	}
}
