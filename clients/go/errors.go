package lease

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// What an [Error] may be, for errors.Is; and the two errors of misuse.
var (
	// ErrLost: the scope has ended, with its lease or with the trust in its session. Begin anew; the keeper already
	// does.
	ErrLost = errors.New("the lease, or the trust in it, has ended")
	// ErrRefused: the server refused the fence, or asks to repeat (LF001, 55P03, 40001). Nothing was written: ask
	// again.
	ErrRefused = errors.New("refused: nothing was written")
	// ErrUnsure: the connection broke before COMMIT was answered, so the transaction may still commit. The scope has
	// ended: whatever comes next begins under a new fence, which is granted only once that transaction has ended.
	ErrUnsure = errors.New("the connection broke before COMMIT was answered")
	// ErrClosed: the keeper was not opened, drains, or is closed.
	ErrClosed = errors.New("lease: the keeper was not opened, drains, or is closed")
	// ErrNoTransaction: a guard would protect nothing, as its connection is in no transaction.
	ErrNoTransaction = errors.New("lease: the connection is in no transaction")
)

// Error tells what became of a scope or of a transaction.
type Error struct {
	Kind     error  // ErrLost, ErrRefused or ErrUnsure
	Resource string // the name of the lease, the group, the item ("queue/7") or the run-once key
	Fence    int64
	Err      error // of the driver, or a context's; may be nil
}

func (e *Error) Error() string {
	text := fmt.Sprintf("lease: %s (fence %d): %v", e.Resource, e.Fence, e.Kind)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap gives errors.Is the kind, and errors.As the driver's error.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }

// SQLState returns the server's code, or "" if the error is not the server's.
func (e *Error) SQLState() string { return sqlstate(e.Err) }

// sqlstate takes the code from an error of pgx, and of other drivers that tell theirs in this way.
func sqlstate(err error) string {
	var told interface{ SQLState() string }
	if errors.As(err, &told) {
		return told.SQLState()
	}
	return ""
}

// answered tells whether an error is the server's answer, on a connection that goes on. A pooler that lost the server
// tells so by an error, too: FATAL, or of class 08.
func answered(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !errors.Is(err, errUnsent) && cmp.Or(pg.SeverityUnlocalized, pg.Severity) == "ERROR" &&
		!strings.HasPrefix(pg.Code, "08")
}

// isBrief tells whether the server refused a call only for now.
func isBrief(err error) bool {
	switch code := sqlstate(err); code {
	case "55P03", "57014", "40001", "40P01", "25006": // 25006: the server stands by, until it is promoted
		return true
	default:
		return strings.HasPrefix(code, "53") && code != "53400" // of its resources, but not a limit that was set
	}
}
