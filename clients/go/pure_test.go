package lease

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"eskit.dev/lease/internal/core"
)

func TestError(t *testing.T) {
	cause := &pgconn.PgError{Code: "LF001", Severity: "ERROR"}
	var err error = &Error{ErrRefused, "sub:orders", 7, cause}
	if !errors.Is(err, ErrRefused) || errors.Is(err, ErrLost) || sqlstate(err) != "LF001" {
		t.Error(err)
	}
	if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg != cause {
		t.Error("the driver's error is not within")
	}
	if err := (&Error{Kind: ErrLost, Resource: "x"}); err.SQLState() != "" || errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestAnswered(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&pgconn.PgError{Severity: "ERROR", Code: "40001"}, true},
		{&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "57014"}, true},
		{&pgconn.PgError{Severity: "FATAL", Code: "57P01"}, false},
		{&pgconn.PgError{Severity: "ERROR", Code: "08P01"}, false},
		{&pgconn.PgError{Severity: "ERROR"}, true},
		{io.ErrUnexpectedEOF, false},
		{context.DeadlineExceeded, false},
		{nil, false},
	} {
		if answered(c.err) != c.want {
			t.Errorf("%v: %v", c.err, !c.want)
		}
	}
}

// told is a keeper without a loop, whose core is told that it has a trusted session.
func told(t *testing.T, ttl time.Duration) *Leases {
	l := newLeases("", []Option{WithTTL(ttl), WithConnect(func(ctx context.Context) (*pgx.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})})
	go l.callLater()
	l.step(func(time.Duration) {})
	l.present.giveUp()
	l.present = &line{calls: make(chan call, 1), giveUp: func() {}}
	l.step(func(time.Duration) { l.core.Connected() })
	<-l.present.calls
	l.step(func(now time.Duration) {
		l.core.Answered(now, core.Answer{Alive: true, Trust: ttl, Session: "s1", Revision: 1})
	})
	return l
}

func TestTrustEndsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := told(t, 3*time.Second)
		began := time.Now()
		s, err := l.newScope(t.Context(), "x", 1, "s1")
		if err != nil || !s.Trusted() {
			t.Fatal(err)
		}
		<-s.Context().Done()
		if took := time.Since(began); took != 3*time.Second {
			t.Error(took)
		}
		if cause := context.Cause(s.Context()); !errors.Is(cause, ErrLost) || s.lost() != cause || l.State() != Doubting {
			t.Error(cause, l.State())
		}
		if _, err := l.newScope(t.Context(), "x", 2, "s1"); !errors.Is(err, ErrLost) {
			t.Error("a scope without trust:", err)
		}
		l.Close()
		synctest.Wait()
	})
}

// occupy takes the turn of a key, until the function that it returns is called.
func occupy(t *testing.T, l *Leases, key string) (end func()) {
	worked := make(chan bool)
	if _, err := l.verb(t.Context(), key, true, func() { <-worked }); err != nil {
		t.Fatal(err)
	}
	return func() { close(worked) }
}

// A drain without a limit does not wait for what is given back to a server that is away.
func TestDrainWithoutAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := told(t, 3*time.Second)
		began := time.Now()
		defer occupy(t, l, "x")()
		drained := make(chan bool)
		go func() {
			l.Drain(context.Background())
			close(drained)
		}()
		select {
		case <-drained:
		case <-time.After(time.Minute):
			t.Error("hangs")
			l.Close()
		}
		if took := time.Since(began); took > 9*time.Second {
			t.Error(took)
		}
		synctest.Wait()
	})
}

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := told(t, time.Second)
		end := occupy(t, l, "x")
		if turn, err := l.verb(t.Context(), "x", false, nil); turn != nil || err != nil {
			t.Error("two at once", err)
		}
		began := false
		go func() {
			if _, err := l.verb(t.Context(), "x", true, func() { began = true }); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if began {
			t.Error("did not wait")
		}
		end()
		synctest.Wait()
		if !began {
			t.Error("did not follow")
		}
		ctx, cancel := context.WithCancel(t.Context())
		end = occupy(t, l, "x")
		cancel()
		if _, err := l.verb(ctx, "x", true, nil); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		end()
		l.Close()
		if _, err := l.verb(t.Context(), "x", true, nil); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func TestHooksAreCalledInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := told(t, time.Second)
		var got []int
		l.mu.Lock()
		for i := range 5 {
			l.afterwards(func() {
				got = append(got, i)
				_ = l.State() // takes the lock
			})
		}
		l.mu.Unlock()
		synctest.Wait()
		for i, n := range got {
			if i != n {
				t.Fatal(got)
			}
		}
		if len(got) != 5 {
			t.Fatal(got)
		}
		l.Close()
		synctest.Wait()
	})
}

func TestOpenGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no route")
		began := time.Now()
		_, err := Open(t.Context(), "", WithPatience(2*time.Second), WithConnect(func(context.Context) (*pgx.Conn, error) {
			return nil, broken
		}))
		if !errors.Is(err, broken) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Error(err, time.Since(began))
		}
		if _, err := Open(t.Context(), "", WithTakeover()); err == nil {
			t.Error("takeover without a name")
		}
		if _, err := Open(t.Context(), "", WithTTL(time.Millisecond)); err == nil {
			t.Error("a TTL of 1 ms")
		}
		synctest.Wait()
	})
}

func TestVerbsWithoutAKeeper(t *testing.T) {
	for _, l := range []*Leases{nil, {}} {
		_, _, err := l.Lead(t.Context(), "x")
		joined := l.Join(t.Context(), "x", nil)
		worked := l.Work(t.Context(), "x", 1, nil, nil)
		_, once := l.Once(t.Context(), "x", nil)
		for _, err := range []error{err, joined, worked, once} {
			if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
	}
}

// A connection may fail by an error of the server, as where WithConnect sets a role. Then there is no connection.
func TestConnectThatTheServerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := &pgconn.PgError{Severity: "ERROR", Code: "22023"}
		_, err := Open(t.Context(), "", WithPatience(2*time.Second), WithConnect(func(context.Context) (*pgx.Conn, error) {
			return nil, refused
		}))
		if !errors.Is(err, refused) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
	})
}
