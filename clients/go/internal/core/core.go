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
	never, always                    = time.Duration(-1 << 63), time.Duration(1<<63 - 1)
	cutShort                         = "57014"
)

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

// Core decides what the keeper of one process does. It is not safe for concurrent use.
type Core struct {
	TTL      time.Duration
	Takeover bool
	Watches  bool           // heartbeats name a table to watch, and the first one begins the watch
	Chance   func() float64 // from 0 to 1

	Session      string // empty without one
	Revision     int64
	TrustedUntil time.Duration

	connected, draining, closed bool

	call         *call         // under way
	heard        time.Duration // when the newest call that was answered was made
	handedOut    bool          // scopes may be trusting
	hadSession   bool
	openedAt     time.Duration
	attempts     int
	nextConnect  *time.Duration
	nextCall     time.Duration
	noWaitBefore time.Duration
	longestWait  time.Duration
	reopenPause  time.Duration
	beatsFirst   bool // before it waits
}

// New returns a core that was not started.
func New(ttl time.Duration, takeover, watches bool, chance func() float64) *Core {
	return &Core{TTL: ttl, Takeover: takeover, Watches: watches, Chance: chance,
		TrustedUntil: never, heard: never, longestWait: always, reopenPause: firstReopen}
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

// Deadline returns when the next Tick is due, and whether one is.
func (c *Core) Deadline() (at time.Duration, due bool) {
	if c.closed {
		return 0, false
	}
	at = always
	if c.handedOut {
		at = c.TrustedUntil
	}
	switch {
	case c.call != nil:
		at = min(at, c.call.sent+c.TTL/2)
	case c.connected:
		at = min(at, c.nextCall)
	case c.nextConnect != nil:
		at = min(at, *c.nextConnect)
	}
	return at, at != always
}

// Start begins.
func (c *Core) Start(time.Duration) []Action { return []Action{{Kind: Connect}} }

// Connected tells that the connection was made.
func (c *Core) Connected(now time.Duration) []Action {
	c.connected, c.nextConnect = true, nil
	c.longestWait, c.noWaitBefore, c.beatsFirst = always, 0, c.Session != ""
	return c.goOn(now)
}

// Disconnected tells that the connection is lost, or could not be made.
func (c *Core) Disconnected(now time.Duration) []Action {
	c.loseConnection(now)
	return c.Tick(now)
}

// Answered tells the answer of the call that is under way.
func (c *Core) Answered(now time.Duration, answer Answer) []Action {
	call := c.endCall()
	c.attempts, c.beatsFirst = 0, false
	switch {
	case call.session != c.Session: // meanwhile that session was known to have ended
		return c.Tick(now)
	case !answer.Alive:
		return append(c.ended(now), c.Tick(now)...)
	case call.kind == Open:
		return append(c.opened(now, call.sent, answer), c.Tick(now)...)
	case answer.Reason == "wait_limit":
		c.noWaitBefore = now + c.TTL/3
	}
	known := c.Revision
	c.Revision = max(known, answer.Revision)
	actions := c.believe(now, call.sent, answer.Trust)
	switch {
	case c.Revision > known:
		actions = []Action{{Kind: Ask}}
	case now < c.noWaitBefore:
		c.nextCall = call.sent + c.jitter(min(beatPause, c.TTL/3), 0.75)
	case call.kind == Wait && now < call.sent+shortestWait:
		c.nextCall = call.sent + shortestWait
	}
	return append(actions, c.Tick(now)...)
}

// Failed tells that the call that is under way raised an error of the server, on a connection that is still good.
func (c *Core) Failed(now time.Duration, sqlstate string) []Action {
	call := c.endCall()
	switch {
	case call.session != c.Session:
		return c.Tick(now)
	case (sqlstate == "LF003" || sqlstate == "55000") && call.kind != Open: // 55000: a server before 0.3.0
		return append(c.ended(now), c.Tick(now)...)
	case sqlstate == cutShort && call.kind == Wait:
		c.attempts, c.longestWait = 0, (now-call.sent)/2
		return c.Tick(now)
	}
	c.nextCall = now + min(errorPause, c.TTL/6)
	return append([]Action{{Kind: Warn, Why: sqlstate}}, c.Tick(now)...)
}

// Heard tells an answer of another connection, to a call of the present session that was made at `sent`.
func (c *Core) Heard(now, sent time.Duration, answer Answer) []Action {
	if c.Session == "" {
		return nil
	}
	if !answer.Alive {
		return append(c.ended(now), c.Tick(now)...)
	}
	return append(c.believe(now, sent, answer.Trust), c.Tick(now)...)
}

// Tick tells that time has passed.
func (c *Core) Tick(now time.Duration) []Action {
	var actions []Action
	if c.handedOut && now >= c.TrustedUntil {
		c.handedOut = false
		actions = append(actions, Action{Kind: Cancel})
	}
	if c.call != nil && now >= c.call.sent+c.TTL/2 {
		c.loseConnection(now)
		actions = append(actions, Action{Kind: Disconnect})
	}
	return append(actions, c.goOn(now)...)
}

// Drain tells that nothing new may begin.
func (c *Core) Drain(now time.Duration) []Action {
	c.draining = true
	if c.Session == "" {
		return c.Close(now)
	}
	return nil
}

// Close tells that the session was closed, or shall end by itself.
func (c *Core) Close(time.Duration) []Action {
	var actions []Action
	if c.handedOut {
		actions = append(actions, Action{Kind: Cancel})
	}
	if c.connected {
		actions = append(actions, Action{Kind: Disconnect})
	}
	c.closed, c.handedOut, c.connected, c.call, c.Session, c.TrustedUntil = true, false, false, nil, "", never
	return actions
}

// goOn makes the next connection or call, if its time has come.
func (c *Core) goOn(now time.Duration) []Action {
	switch {
	case c.closed || c.call != nil:
		return nil
	case !c.connected:
		if c.nextConnect == nil || now < *c.nextConnect {
			return nil
		}
		c.nextConnect = nil
		return []Action{{Kind: Connect}}
	case now < c.nextCall:
		return nil
	case c.Session == "":
		return c.begin(now, Action{Kind: Open, Takeover: c.Takeover && !c.hadSession})
	}
	if c.longestWait < shortestWait {
		c.noWaitBefore, c.longestWait = now+c.TTL/3, always
	}
	if c.beatsFirst || now < c.noWaitBefore {
		return c.begin(now, Action{Kind: Beat})
	}
	timeout := c.TTL / 3
	if now >= c.TrustedUntil {
		timeout = c.TTL / 10
	}
	return c.begin(now, Action{Kind: Wait, Timeout: min(timeout, c.longestWait), Revision: c.Revision})
}

func (c *Core) begin(now time.Duration, action Action) []Action {
	c.call = &call{action.Kind, now, c.Session}
	return []Action{action}
}

func (c *Core) endCall() call {
	ended := c.call
	c.call = nil
	return *ended
}

func (c *Core) opened(now, sent time.Duration, answer Answer) []Action {
	c.Session, c.Revision = answer.Session, answer.Revision
	c.hadSession, c.openedAt, c.beatsFirst = true, now, c.Watches
	return c.believe(now, sent, answer.Trust)
}

// believe counts the trust from before the call. When trust is back, all scopes ask.
func (c *Core) believe(now, sent, trust time.Duration) []Action {
	if sent >= c.heard {
		c.heard, c.TrustedUntil = sent, sent+trust
	}
	if c.handedOut || now >= c.TrustedUntil {
		return nil
	}
	c.handedOut = true
	return []Action{{Kind: Ask}}
}

// ended is for a session that has ended. While it was trusted, only another process can have ended it. That one may have
// the same name, and two such processes must not end each other's sessions for ever: hence the pause.
func (c *Core) ended(now time.Duration) []Action {
	var actions []Action
	if c.handedOut {
		actions = append(actions, Action{Kind: Cancel})
	}
	taken := now < c.TrustedUntil
	c.Session, c.handedOut, c.beatsFirst, c.TrustedUntil, c.nextCall = "", false, false, never, now
	if c.draining {
		return append(actions, c.Close(now)...)
	}
	if taken {
		if now >= c.openedAt+longestReopen {
			c.reopenPause = firstReopen
		}
		c.nextCall = now + c.jitter(c.reopenPause, 0.5)
		c.reopenPause = min(2*c.reopenPause, longestReopen)
		actions = append(actions, Action{Kind: Warn, Why: "taken"})
	}
	return actions
}

// loseConnection lets the first new try be made at once. Later tries come after a pause that doubles.
func (c *Core) loseConnection(now time.Duration) {
	next := now
	if c.attempts > 0 {
		next += c.jitter(min(minConnectPause<<(c.attempts-1), maxConnectPause, c.TTL/6), 0.5)
	}
	c.connected, c.call, c.nextConnect = false, nil, &next
	c.attempts = min(c.attempts+1, 16)
}

// jitter shortens a pause to `least` of it at most, by chance.
func (c *Core) jitter(pause time.Duration, least float64) time.Duration {
	return time.Duration(float64(pause) * (least + (1-least)*c.Chance()))
}
