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

// Action is what the keeper must do. Open, wait and beat are calls, of which one is under way at a time.
type Action struct {
	Do       string        // connect, disconnect, open, wait, beat, cancel (every scope), ask (every scope), or warn
	Takeover bool          // of open
	Timeout  time.Duration // of wait
	Revision int64         // of wait
	Why      string        // of warn: an SQLSTATE, or "taken"
}

// Core decides what the keeper of one process does. It is not safe for concurrent use. It is told events. After each of
// them Tick returns what to do.
type Core struct {
	TTL      time.Duration
	Takeover bool
	Watches  bool           // heartbeats name a table to watch, and the first one begins the watch
	Chance   func() float64 // from 0 to 1

	Session      string        // empty without one
	TrustedUntil time.Duration // 0 without trust

	actions []Action // that Tick is to return

	connected, draining, closed, hadSession bool
	handedOut                               bool // scopes may be trusting
	beatsFirst                              bool // before it waits

	calling     string        // the call that is under way; empty without one
	sent, heard time.Duration // when it was made, and when the newest one that was answered was
	calledFor   string        // its session

	revision                  int64
	attempts                  int           // to connect
	nextConnect, nextCall     time.Duration // Never: none
	openedAt, reopenPause     time.Duration
	noWaitBefore, longestWait time.Duration
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
	at := c.nextConnect
	switch {
	case c.closed:
		return Never
	case c.calling != "":
		at = c.sent + c.TTL/2
	case c.connected:
		at = c.nextCall
	}
	if c.handedOut {
		return min(at, c.TrustedUntil)
	}
	return at
}

// Connected tells that the connection was made.
func (c *Core) Connected() {
	c.connected, c.longestWait, c.noWaitBefore, c.beatsFirst = true, Never, 0, c.Session != ""
}

// Disconnected tells that the connection is lost, or could not be made. The first new try is made at once. Later ones
// come after a pause that doubles.
func (c *Core) Disconnected(now time.Duration) {
	c.connected, c.calling, c.nextConnect = false, "", now
	if c.attempts > 0 {
		c.nextConnect += c.jitter(min(minConnectPause<<(c.attempts-1), maxConnectPause, c.TTL/6), 0.5)
	}
	c.attempts = min(c.attempts+1, 16)
}

// Answered tells the answer of the call that is under way, and decides when the next one is due.
func (c *Core) Answered(now time.Duration, answer Answer) {
	kind := c.calling
	c.calling, c.attempts, c.beatsFirst = "", 0, false
	if c.calledFor != c.Session { // meanwhile that session was known to have ended
		return
	}
	if !answer.Alive {
		c.ended(now)
		return
	}
	if kind == "open" {
		c.Session, c.revision = answer.Session, answer.Revision
		c.hadSession, c.openedAt, c.beatsFirst = true, now, c.Watches
	}
	if answer.Reason == "wait_limit" {
		c.noWaitBefore = now + c.TTL/3
	}
	isNews := answer.Revision > c.revision
	c.revision = max(c.revision, answer.Revision)
	c.believe(now, c.sent, answer.Trust, isNews)
	switch {
	case isNews || kind == "open":
	case now < c.noWaitBefore:
		c.nextCall = c.sent + c.jitter(min(beatPause, c.TTL/3), 0.75)
	case kind == "wait" && now < c.sent+shortestWait:
		c.nextCall = c.sent + shortestWait
	}
}

// Failed tells that the call that is under way raised an error of the server, on a connection that is still good.
func (c *Core) Failed(now time.Duration, sqlstate string) {
	kind := c.calling
	c.calling = ""
	switch {
	case c.calledFor != c.Session:
	case (sqlstate == "LF003" || sqlstate == "55000") && kind != "open": // 55000: a server before 0.3.0
		c.ended(now)
	case sqlstate == "57014" && kind == "wait": // it was cut short
		c.attempts, c.longestWait = 0, (now-c.sent)/2
	default:
		c.nextCall = now + min(errorPause, c.TTL/6)
		c.do(Action{Do: "warn", Why: sqlstate})
	}
}

// Heard tells an answer of another connection, to a call of a session that was made at `sent`.
func (c *Core) Heard(now time.Duration, session string, sent time.Duration, answer Answer) {
	switch {
	case session == "" || session != c.Session:
	case answer.Alive:
		c.believe(now, sent, answer.Trust, false)
	default:
		c.ended(now)
	}
}

// Replaced tells that the keeper itself closes a session, to have another. So no other process has ended it.
func (c *Core) Replaced(now time.Duration, session string) {
	if session == c.Session {
		c.TrustedUntil = 0
	}
	c.Heard(now, session, now, Answer{Alive: false})
}

// Tick tells that time has passed. It returns all that must be done since the last Tick, in this order.
func (c *Core) Tick(now time.Duration) []Action {
	if now >= c.TrustedUntil {
		c.cancel()
	}
	if c.calling != "" && now >= c.sent+c.TTL/2 {
		c.Disconnected(now)
		c.do(Action{Do: "disconnect"})
	}
	if !c.closed && c.calling == "" {
		c.goOn(now)
	}
	actions := c.actions
	c.actions = nil
	return actions
}

// Drain tells that nothing new may begin.
func (c *Core) Drain() {
	c.draining = true
	if c.Session == "" {
		c.Close()
	}
}

// Close tells that the session was closed, or shall end by itself.
func (c *Core) Close() {
	c.cancel()
	if c.connected {
		c.do(Action{Do: "disconnect"})
	}
	c.closed, c.connected, c.calling, c.Session, c.TrustedUntil = true, false, "", "", 0
}

func (c *Core) do(action Action) { c.actions = append(c.actions, action) }

// cancel cancels all scopes, if there are any.
func (c *Core) cancel() {
	if c.handedOut {
		c.handedOut = false
		c.do(Action{Do: "cancel"})
	}
}

// goOn makes the next connection or call, if its time has come.
func (c *Core) goOn(now time.Duration) {
	if !c.connected {
		if now >= c.nextConnect {
			c.nextConnect = Never
			c.do(Action{Do: "connect"})
		}
		return
	}
	if now < c.nextCall {
		return
	}
	if c.longestWait < shortestWait {
		c.noWaitBefore, c.longestWait = now+c.TTL/3, Never
	}
	next := Action{Do: "wait", Timeout: min(c.TTL/3, c.longestWait), Revision: c.revision}
	switch {
	case c.Session == "":
		next = Action{Do: "open", Takeover: c.Takeover && !c.hadSession}
	case c.beatsFirst || now < c.noWaitBefore:
		next = Action{Do: "beat"}
	case now >= c.TrustedUntil:
		next.Timeout = min(c.TTL/10, c.longestWait)
	}
	c.calling, c.sent, c.calledFor = next.Do, now, c.Session
	c.do(next)
}

// believe counts the trust from before the call. When trust is back, or if there is news, all scopes ask.
func (c *Core) believe(now, sent, trust time.Duration, isNews bool) {
	if sent >= c.heard {
		c.heard, c.TrustedUntil = sent, sent+trust
	}
	isBack := !c.handedOut && now < c.TrustedUntil
	c.handedOut = c.handedOut || isBack
	if isBack || isNews {
		c.do(Action{Do: "ask"})
	}
}

// ended is for a session that has ended. While it was trusted, only another process can have ended it. That one may
// have the same name, and two such processes must not end each other's sessions for ever: hence the pause.
func (c *Core) ended(now time.Duration) {
	taken := now < c.TrustedUntil
	c.cancel()
	c.Session, c.beatsFirst, c.TrustedUntil, c.nextCall = "", false, 0, now
	if c.draining {
		c.Close()
	} else if taken {
		if now >= c.openedAt+longestReopen {
			c.reopenPause = 0
		}
		pause := max(c.reopenPause, firstReopen)
		c.nextCall += c.jitter(pause, 0.5)
		c.reopenPause = min(2*pause, longestReopen)
		c.do(Action{Do: "warn", Why: "taken"})
	}
}

// jitter shortens a pause by chance, to `least` of it at most.
func (c *Core) jitter(pause time.Duration, least float64) time.Duration {
	return time.Duration(float64(pause) * (least + (1-least)*c.Chance()))
}
