// Package core is the protocol of the keeper's connection, without a connection: events with their times go in, actions
// come out. Times are durations on a monotonic clock, from any beginning.
package core

import "time"

const (
	maxConnectPause, minConnectPause = time.Second, 100 * time.Millisecond
	beatPause                        = time.Second            // between heartbeats where waits are refused
	shortestWait                     = 100 * time.Millisecond // a shorter one would be a poll
	firstReopen, longestReopen       = time.Second, time.Minute
	errorPause                       = time.Second
	past                             = time.Duration(-1 << 63)
)

// Never is later than any time.
const Never = time.Duration(1<<63 - 1)

// State is what a process may do.
type State string

// The states of a keeper.
const (
	Starting State = "starting" // opens a session
	Trusted  State = "trusted"  // work may begin
	Doubting State = "doubting" // the session may have ended: work is cancelled, and the session asked
	Lost     State = "lost"     // the session has ended: work is cancelled, and another one opens
	Draining State = "draining" // finishes what has begun
	Closed   State = "closed"   // is closed
)

// Answer is what a heartbeat, a wait or session_open answers.
type Answer struct {
	Alive    bool
	Trust    time.Duration
	Revision int64
	Reason   string
	Session  string // of session_open
}

// Kind names an action.
type Kind string

// The actions. Open, Wait and Beat are calls, of which one is under way at a time.
const (
	Connect    Kind = "connect"
	Disconnect Kind = "disconnect"
	Open       Kind = "open"
	Wait       Kind = "wait"
	Beat       Kind = "beat"
	Cancel     Kind = "cancel" // every scope
	Ask        Kind = "ask"    // every scope
	Warn       Kind = "warn"
)

// Action is what the keeper must do.
type Action struct {
	Kind     Kind
	Takeover bool          // of Open
	Timeout  time.Duration // of Wait
	Revision int64         // of Wait
	Why      string        // of Warn: an SQLSTATE, or "taken"
}

type call struct {
	kind    Kind
	sent    time.Duration
	session string
}

// Core decides what the keeper of one process does. It is not safe for concurrent use. Its events return actions, in
// the order in which to do them.
type Core struct {
	TTL      time.Duration
	Takeover bool
	Watches  bool           // heartbeats name a table to watch, and the first one begins the watch
	Chance   func() float64 // from 0 to 1

	Session      string // empty without one
	Revision     int64
	TrustedUntil time.Duration

	actions      []Action // of the event at hand
	connected    bool
	draining     bool
	closed       bool
	call         *call         // under way
	heard        time.Duration // when the newest call that was answered was made
	handedOut    bool          // scopes may be trusting
	hadSession   bool
	openedAt     time.Duration
	attempts     int
	nextConnect  time.Duration // Never: none
	nextCall     time.Duration
	noWaitBefore time.Duration
	longestWait  time.Duration
	reopenPause  time.Duration
	beatsFirst   bool // before it waits
	renounced    bool // the present session, by this keeper
}

// New returns a core that was not started.
func New(ttl time.Duration, takeover, watches bool, chance func() float64) *Core {
	return &Core{TTL: ttl, Takeover: takeover, Watches: watches, Chance: chance, TrustedUntil: past, heard: past,
		nextConnect: Never, longestWait: Never, reopenPause: firstReopen}
}

// State returns the state at a time.
func (c *Core) State(now time.Duration) State {
	switch {
	case c.closed:
		return Closed
	case c.Session == "" && c.hadSession:
		return Lost
	case c.Session == "":
		return Starting
	case now >= c.TrustedUntil:
		return Doubting
	case c.draining:
		return Draining
	}
	return Trusted
}

// Deadline returns when the next Tick is due; Never if none is.
func (c *Core) Deadline() time.Duration {
	at := Never
	if c.handedOut {
		at = c.TrustedUntil
	}
	switch {
	case c.closed:
		return Never
	case c.call != nil:
		return min(at, c.call.sent+c.TTL/2)
	case c.connected:
		return min(at, c.nextCall)
	}
	return min(at, c.nextConnect)
}

// Start begins.
func (c *Core) Start(now time.Duration) []Action {
	c.nextConnect = now
	return c.Tick(now)
}

// Connected tells that the connection was made.
func (c *Core) Connected(now time.Duration) []Action {
	c.connected, c.longestWait, c.noWaitBefore, c.beatsFirst = true, Never, 0, c.Session != ""
	return c.Tick(now)
}

// Disconnected tells that the connection is lost, or could not be made.
func (c *Core) Disconnected(now time.Duration) []Action {
	c.loseConnection(now)
	return c.Tick(now)
}

// Answered tells the answer of the call that is under way.
func (c *Core) Answered(now time.Duration, answer Answer) []Action {
	call := *c.call
	c.call = nil
	c.attempts, c.beatsFirst = 0, false
	switch {
	case call.session != c.Session: // meanwhile that session was known to have ended
	case !answer.Alive:
		c.ended(now)
	case call.kind == Open:
		c.Session, c.Revision = answer.Session, answer.Revision
		c.hadSession, c.openedAt, c.beatsFirst = true, now, c.Watches
		c.believe(now, call.sent, answer.Trust)
	default:
		c.learn(now, call, answer)
	}
	return c.Tick(now)
}

// Failed tells that the call that is under way raised an error of the server, on a connection that is still good.
func (c *Core) Failed(now time.Duration, sqlstate string) []Action {
	call := *c.call
	c.call = nil
	switch {
	case call.session != c.Session:
	case (sqlstate == "LF003" || sqlstate == "55000") && call.kind != Open: // 55000: a server before 0.3.0
		c.ended(now)
	case sqlstate == "57014" && call.kind == Wait: // it was cut short
		c.attempts, c.longestWait = 0, (now-call.sent)/2
	default:
		c.nextCall = now + min(errorPause, c.TTL/6)
		c.do(Action{Kind: Warn, Why: sqlstate})
	}
	return c.Tick(now)
}

// Heard tells an answer of another connection, to a call of the present session that was made at `sent`.
func (c *Core) Heard(now, sent time.Duration, answer Answer) []Action {
	switch {
	case c.Session == "":
		return nil
	case answer.Alive:
		c.believe(now, sent, answer.Trust)
	default:
		c.ended(now)
	}
	return c.Tick(now)
}

// Renounced tells that the keeper itself closes the present session. It is not believed any more, so that its end is not
// taken for the deed of another process.
func (c *Core) Renounced(now time.Duration) []Action {
	c.renounced, c.TrustedUntil = true, past
	return c.Tick(now)
}

// Tick tells that time has passed.
func (c *Core) Tick(now time.Duration) []Action {
	if now >= c.TrustedUntil {
		c.cancel()
	}
	if c.call != nil && now >= c.call.sent+c.TTL/2 {
		c.loseConnection(now)
		c.do(Action{Kind: Disconnect})
	}
	c.goOn(now)
	actions := c.actions
	c.actions = nil
	return actions
}

// Drain tells that nothing new may begin.
func (c *Core) Drain(now time.Duration) []Action {
	c.draining = true
	if c.Session == "" {
		c.close()
	}
	return c.Tick(now)
}

// Close tells that the session was closed, or shall end by itself.
func (c *Core) Close(now time.Duration) []Action {
	c.close()
	return c.Tick(now)
}

func (c *Core) do(action Action) { c.actions = append(c.actions, action) }

// cancel cancels all scopes, if there are any.
func (c *Core) cancel() {
	if c.handedOut {
		c.handedOut = false
		c.do(Action{Kind: Cancel})
	}
}

func (c *Core) close() {
	c.cancel()
	if c.connected {
		c.do(Action{Kind: Disconnect})
	}
	c.closed, c.connected, c.call, c.Session, c.TrustedUntil = true, false, nil, "", past
}

// goOn makes the next connection or call, if its time has come.
func (c *Core) goOn(now time.Duration) {
	switch {
	case c.closed || c.call != nil:
		return
	case !c.connected:
		if now >= c.nextConnect {
			c.nextConnect = Never
			c.do(Action{Kind: Connect})
		}
		return
	case now < c.nextCall:
		return
	}
	if c.longestWait < shortestWait {
		c.noWaitBefore, c.longestWait = now+c.TTL/3, Never
	}
	next := Action{Kind: Wait, Timeout: min(c.TTL/3, c.longestWait), Revision: c.Revision}
	switch {
	case c.Session == "":
		next = Action{Kind: Open, Takeover: c.Takeover && !c.hadSession}
	case c.beatsFirst || now < c.noWaitBefore:
		next = Action{Kind: Beat}
	case now >= c.TrustedUntil:
		next.Timeout = min(c.TTL/10, c.longestWait)
	}
	c.call = &call{next.Kind, now, c.Session}
	c.do(next)
}

// learn takes in the answer of a heartbeat or a wait, and decides when the next call is due.
func (c *Core) learn(now time.Duration, call call, answer Answer) {
	if answer.Reason == "wait_limit" {
		c.noWaitBefore = now + c.TTL/3
	}
	c.believe(now, call.sent, answer.Trust)
	switch {
	case answer.Revision > c.Revision:
		c.Revision = answer.Revision
		if len(c.actions) == 0 { // else trust is back, and they ask already
			c.do(Action{Kind: Ask})
		}
	case now < c.noWaitBefore:
		c.nextCall = call.sent + c.jitter(min(beatPause, c.TTL/3), 0.75)
	case call.kind == Wait && now < call.sent+shortestWait:
		c.nextCall = call.sent + shortestWait
	}
}

// believe counts the trust from before the call. When trust is back, all scopes ask.
func (c *Core) believe(now, sent, trust time.Duration) {
	if sent >= c.heard && !c.renounced {
		c.heard, c.TrustedUntil = sent, sent+trust
	}
	if !c.handedOut && now < c.TrustedUntil {
		c.handedOut = true
		c.do(Action{Kind: Ask})
	}
}

// ended is for a session that has ended. While it was trusted, only another process can have ended it. That one may
// have the same name, and two such processes must not end each other's sessions for ever: hence the pause.
func (c *Core) ended(now time.Duration) {
	taken := now < c.TrustedUntil
	c.cancel()
	c.Session, c.beatsFirst, c.renounced, c.TrustedUntil, c.nextCall = "", false, false, past, now
	if c.draining {
		c.close()
	} else if taken {
		if now >= c.openedAt+longestReopen {
			c.reopenPause = firstReopen
		}
		c.nextCall = now + c.jitter(c.reopenPause, 0.5)
		c.reopenPause = min(2*c.reopenPause, longestReopen)
		c.do(Action{Kind: Warn, Why: "taken"})
	}
}

// loseConnection lets the first new try be made at once. Later tries come after a pause that doubles.
func (c *Core) loseConnection(now time.Duration) {
	c.connected, c.call, c.nextConnect = false, nil, now
	if c.attempts > 0 {
		c.nextConnect += c.jitter(min(minConnectPause<<(c.attempts-1), maxConnectPause, c.TTL/6), 0.5)
	}
	c.attempts = min(c.attempts+1, 16)
}

// jitter shortens a pause by chance, to `least` of it at most.
func (c *Core) jitter(pause time.Duration, least float64) time.Duration {
	return time.Duration(float64(pause) * (least + (1-least)*c.Chance()))
}
