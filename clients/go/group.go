package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

const firstPause, longestPause = 100 * time.Millisecond, 10 * time.Second // after a task that failed

// Partition is a [Scope] of a partition of a group.
type Partition struct {
	*Scope
	Group  string
	Number int
}

// Position returns how far the group has come in this partition; 0 if nothing is done.
func (p *Partition) Position(ctx context.Context, tx Tx) (position int64, err error) {
	err = p.check(ctx, tx, &position, `SELECT eskit_lease.cursor_position($1::text, $2::int)`, p.Group, p.Number)
	return position, err
}

// Commit moves the cursor to position in a transaction of yours, and checks the fence: call it, with the position at
// which your batch began, instead of [Scope.Guard]. If moved is false, the batch is done already: apply nothing.
func (p *Partition) Commit(ctx context.Context, tx Tx, position, expected int64) (moved bool, err error) {
	err = p.check(ctx, tx, &moved,
		`SELECT eskit_lease.cursor_commit($1::text, $2::int, $3::bigint, $4::bigint, $5::bigint)`,
		p.Group, p.Number, position, p.fence, expected)
	return moved, err
}

// Join makes the process a member of a group, and runs work for each partition that it owns, under the partition's
// fence. The context of work is cancelled when the partition moves away: end what you have in hand, and return. If work
// returns before, the partition is released, and work begins anew under a new fence: at once after [ErrRefused] and
// [ErrUnsure], else after a pause of 0.1 s, which doubles to 10 s.
//
// Join returns when ctx is done or the keeper drains, and all work has ended; or with the server's error. After a drain
// it returns nil. It waits for the group to be left for a TTL; after that, this goes on in the background.
func (l *Leases) Join(ctx context.Context, group string, work func(context.Context, *Partition) error) error {
	m := &member{crew: crew{Leases: l}, group: group, work: work, tasks: map[int]*Partition{},
		pauses: map[int]time.Duration{}}
	return m.attend(ctx, "group "+group, m.look, m.leave)
}

// member is a call of Join.
type member struct {
	crew
	group   string
	work    func(context.Context, *Partition) error
	session string // that is a member
	asked   string // the session that was last asked to join, and may be a member
	tasks   map[int]*Partition
	pauses  map[int]time.Duration // before a task that failed begins anew
}

type assigned struct {
	Partition int
	Fence     int64
	State     string
}

// look joins with a new session, and starts and cancels tasks as the assignment says.
func (m *member) look(session string, _ <-chan struct{}) (bool, error) {
	if m.session != session {
		m.asked = session
		err := m.exec(session, `SELECT eskit_lease.group_join($1::text, $2::uuid)`, m.group, session)
		if err != nil {
			return stays(err), err
		}
		m.session = session
	}
	rows, err := try[assigned](m.Leases, session,
		`SELECT partition, fence, state FROM eskit_lease.group_assignment($1::text, $2::uuid)`, m.group, session)
	if err != nil {
		code := sqlstate(err)
		if code == "55000" { // it is no member any more
			m.session = ""
		}
		return answered(err) && (code == "42704" || code == "42501"), err
	}
	owned := map[int]int64{}
	for _, row := range rows {
		if row.State == "owned" {
			owned[row.Partition] = row.Fence
		}
	}
	for number, p := range m.tasks {
		if owned[number] != p.fence {
			p.end(errors.New("the partition moves to another member"))
		}
	}
	for _, row := range rows {
		if m.tasks[row.Partition] != nil {
			continue
		}
		used, _ := m.used.Load(m.key(row.Partition))
		if row.State != "owned" || used == row.Fence { // it moves on before a task began, or its release was refused
			m.release(session, row.Partition, row.Fence)
			err = errAgain
		} else if scope, err := m.start(m.ctx, m.group, row.Fence, session); err == nil {
			m.used.Store(m.key(row.Partition), row.Fence)
			m.tasks[row.Partition] = &Partition{scope, m.group, row.Partition}
			go m.run(m.tasks[row.Partition], max(m.pauses[row.Partition], firstPause))
		}
	}
	return false, err
}

// key is where the fence of a partition is noted.
func (m *member) key(number int) string { return fmt.Sprintf("group %s/%d", m.group, number) }

// run works in a partition, and releases it.
func (m *member) run(p *Partition, pause time.Duration) {
	err := m.work(p.ctx, p)
	failed := p.Trusted() && !errors.Is(err, ErrRefused)
	if failed {
		what := fmt.Sprintf("the work of partition %d of %s ended", p.Number, m.group)
		m.warn(what, cmp.Or(err, errors.New("it returned")))
		p.pause(pause)
	}
	p.cancel(nil)
	m.working.Done()
	if m.ctx.Err() == nil { // else the group is left
		m.release(p.session, p.Number, p.fence)
	}
	m.ended <- func() {
		delete(m.tasks, p.Number)
		delete(m.pauses, p.Number)
		if failed {
			m.pauses[p.Number] = min(2*pause, longestPause)
		}
	}
}

func (m *member) release(session string, number int, fence int64) {
	m.tell("a partition was not released", session,
		`SELECT eskit_lease.group_release($1::text, $2::int, $3::bigint)`, m.group, number, fence)
}

// leave waits for the tasks, and leaves the group.
func (m *member) leave() {
	for len(m.tasks) > 0 {
		(<-m.ended)()
	}
	if m.asked != "" {
		err := m.exec(m.asked, `SELECT eskit_lease.group_leave($1::text, $2::uuid)`, m.group, m.asked)
		if sqlstate(err) != "42704" { // no such group
			m.warn("the group was not left", err)
		}
	}
}
