package core

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"
)

// The vectors are data of the repository, so a module that was installed without it lacks them.
const vectors = "../../../vectors/keeper.json"

type vector struct {
	Case     string
	Settings struct {
		TTL      int64 `json:"ttl_ms"`
		Takeover bool
		Watches  bool
		Random   *float64
	}
	Steps []struct {
		At           int64
		Event        json.RawMessage
		Actions      []any
		State        State
		TrustedUntil *int64          `json:"trusted_until"`
		Deadline     json.RawMessage // null: none; left out: not said
	}
}

type given struct {
	Answer *struct {
		Alive    *bool
		TrustMs  int64 `json:"trust_ms"`
		Revision int64
		Reason   string
		Session  string
	}
	SQLState string
	Sent     int64
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// happen tells the core an event as the vectors write it: a name, or a name with what is given.
func happen(t *testing.T, c *Core, now time.Duration, event json.RawMessage) []Action {
	t.Helper()
	var name string
	var with given
	if json.Unmarshal(event, &name) != nil {
		var named map[string]given
		if err := json.Unmarshal(event, &named); err != nil {
			t.Fatal(err)
		}
		for name, with = range named {
		}
	}
	var answer Answer
	if a := with.Answer; a != nil {
		answer = Answer{a.Alive == nil || *a.Alive, ms(a.TrustMs), a.Revision, a.Reason, a.Session}
	}
	switch name {
	case "start", "tick":
	case "connected":
		c.Connected()
	case "disconnected":
		c.Disconnected(now)
	case "answered":
		c.Answered(now, answer)
	case "failed":
		c.Failed(now, with.SQLState)
	case "heard":
		c.Heard(now, c.Session, ms(with.Sent), answer)
	case "drain":
		c.Drain()
	case "close":
		c.Close()
	default:
		t.Fatalf("an event that this test does not know: %s", event)
	}
	return c.Tick(now)
}

// told returns actions as the vectors write them.
func told(actions []Action) []any {
	var all []any
	for _, a := range actions {
		switch a.Do {
		case "open":
			all = append(all, map[string]any{"open": map[string]any{"takeover": a.Takeover}})
		case "wait":
			wait := map[string]any{"timeout_ms": float64(a.Timeout.Milliseconds()), "revision": float64(a.Revision)}
			all = append(all, map[string]any{"wait": wait})
		case "warn":
			all = append(all, map[string]any{"warn": map[string]any{"why": a.Why}})
		default:
			all = append(all, a.Do)
		}
	}
	return all
}

func TestVectors(t *testing.T) {
	text, err := os.ReadFile(vectors)
	if err != nil {
		t.Skip(err)
	}
	var cases []vector
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, v := range cases {
		t.Run(v.Case, func(t *testing.T) {
			chance := 1.0
			if v.Settings.Random != nil {
				chance = *v.Settings.Random
			}
			c := &Core{TTL: ms(v.Settings.TTL), Takeover: v.Settings.Takeover, Watches: v.Settings.Watches,
				Chance: func() float64 { return chance }}
			for i, step := range v.Steps {
				where := fmt.Sprintf("step %d at %d: %s", i, step.At, step.Event)
				if got := told(happen(t, c, ms(step.At), step.Event)); !reflect.DeepEqual(got, step.Actions) {
					t.Fatalf("%s\ndoes   %v\nshould %v", where, got, step.Actions)
				}
				if got := c.State(ms(step.At)); got != step.State {
					t.Fatalf("%s\nis %s, should be %s", where, got, step.State)
				}
				if step.TrustedUntil != nil && c.TrustedUntil != ms(*step.TrustedUntil) {
					t.Fatalf("%s\ntrusts until %v, should until %d ms", where, c.TrustedUntil, *step.TrustedUntil)
				}
				if step.Deadline != nil {
					if got := deadline(c); got != string(step.Deadline) {
						t.Fatalf("%s\nneeds a tick at %s, should at %s", where, got, step.Deadline)
					}
				}
			}
		})
	}
}

func deadline(c *Core) string {
	at := c.Deadline()
	if at == Never {
		return "null"
	}
	return fmt.Sprint(at.Milliseconds())
}

// A session that the keeper closes itself was not taken by another process, and the next one opens at once.
func TestReplaced(t *testing.T) {
	c := &Core{TTL: ms(3000), Chance: func() float64 { return 1 }}
	c.Tick(0)
	c.Connected()
	c.Tick(0)
	c.Answered(0, Answer{Alive: true, Trust: ms(3000), Session: "s1", Revision: 1})
	c.Tick(0)
	c.Replaced(ms(5), "s0")
	if got := told(c.Tick(ms(5))); got != nil || c.State(ms(5)) != Trusted {
		t.Error(got, c.State(ms(5)))
	}
	c.Replaced(ms(10), "s1")
	if got := told(c.Tick(ms(10))); len(got) != 1 || got[0] != "cancel" || c.State(ms(10)) != Lost {
		t.Error(got, c.State(ms(10)))
	}
	c.Heard(ms(30), "s1", ms(25), Answer{Alive: true, Trust: ms(3000)})
	if state := c.State(ms(30)); state != Lost {
		t.Error(state)
	}
	c.Answered(ms(50), Answer{Alive: true, Trust: ms(3000), Revision: 2}) // of the wait that was under way
	if got := c.Tick(ms(50)); len(got) != 1 || got[0].Do != "open" {
		t.Error(got)
	}
	c.Answered(ms(60), Answer{Alive: true, Trust: ms(3000), Session: "s2", Revision: 3})
	if state := c.State(ms(60)); state != Trusted {
		t.Error(state)
	}
}
