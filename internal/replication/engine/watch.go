package engine

import (
	"time"

	"samovar/internal/replication"
)

// watch counts silence, sends pings, redials, and drops who does not answer (rule 23).
func (e *Engine) watch(ran time.Duration) {
	if e.phase == Claiming {
		return
	}
	dropped := false
	for _, m := range e.members {
		if !m.connected && !m.dialing && e.now >= m.redialAt {
			e.dial(m)
		}
		if m.up && e.now >= m.pinged+e.opts.PingInterval {
			e.ping(m)
		}
		m.silence += ran
		if m.silence < e.opts.PingTimeout {
			continue
		}
		if dropped {
			// One tick drops one member: the others get a fresh probe first.
			m.silence = e.opts.PingTimeout - e.opts.PingInterval
			continue
		}
		m.silence = 0
		if m.inSync && !m.failing && e.phase >= Settling {
			dropped = e.failMember(m, "no answer within the ping time-out", true) || e.changeRoles(m)
		}
		if m.inSync || m.connected {
			e.hangUp(m)
		}
	}
}

// changeRoles: the last member that is not failing does not answer, while one that was to be removed does, and has
// all that was acknowledged: nothing is acknowledged without a member before its removal is durable. It takes the
// other's place.
func (e *Engine) changeRoles(m *member) bool {
	if e.change != nil && e.change.stage != preparing {
		return false
	}
	var back *member
	for _, o := range e.members {
		// An attachment that goes one step back judges anew who has what.
		whole := o.up && (e.phase == Settling || !o.lost && !o.knowledge.Broken && (!e.settled || o.need.Empty()))
		if o != m && o.inSync && o.failing && whole {
			back = o
		}
	}
	if back == nil {
		return false
	}
	e.change = nil
	back.failing, back.soft, back.lost = false, false, false
	e.event("replica-back", back, "takes part again: the last other member does not answer", 0)
	if e.phase == Settling {
		// What it has in doubt was not gathered: the attachment goes one step back.
		m.failing, m.soft = false, false
		e.phase, e.since = Fencing, 0
		e.hangUp(m)
		return true
	}
	back.doubt.Union(back.need)
	back.need.Clear()
	e.failMember(m, "no answer within the ping time-out", true)
	if !e.settled {
		e.sourceLost()
	}
	e.replay(back)
	return true
}

// watchSlow deals with replicas that answer pings but not what they are asked: their medium hangs, or is no match for
// the others (rule 23). Reads are asked elsewhere first; a member leaves if another one keeps up; who is not in-sync is
// hung up on.
func (e *Engine) watchSlow(ran time.Duration) {
	if e.opts.SlowAfter == 0 || e.phase < Settling {
		return
	}
	for _, m := range e.members {
		waited := e.waited(m)
		if waited >= e.opts.SlowAfter/4 {
			e.askElsewhere(m)
		}
		switch {
		case !m.up:
		case !m.inSync && waited >= e.opts.SlowAfter:
			e.event("replica-slow", m, "it answers, but does not do what it is asked", 0)
			e.hangUp(m)
		case m.inSync && !m.failing && e.tooSlow(m, waited, ran):
			return // the others get a fresh look
		}
	}
}

// tooSlow fails a member that is far behind one that is not, or changes its role with one that was to leave.
func (e *Engine) tooSlow(m *member, waited, ran time.Duration) bool {
	if waited < e.opts.SlowAfter/5 || !e.anotherKeepsUp(m) {
		m.slow = 0
		return waited >= e.opts.SlowAfter && e.changeRoles(m)
	}
	m.slow += ran
	why := ""
	switch {
	case waited >= e.opts.SlowAfter:
		why = "it answers, but has not done what it was asked for so long"
	case m.slow >= e.opts.SlowFor:
		why = "it has been far slower than the others for a while"
	default:
		return false
	}
	if !e.failMember(m, why, true) {
		return false
	}
	m.slow = 0
	m.redialAt = e.now + e.opts.SlowFor
	return true
}

func (e *Engine) anotherKeepsUp(m *member) bool {
	for _, o := range e.members {
		if o != m && o.usable() && e.waited(o) < e.opts.SlowAfter/2 {
			return true
		}
	}
	return false
}

// waited is how long, in engine-run time, m has owed an answer. A write or sync counts only if somebody else has done
// it: all may be waiting for one of them, for example for room in their logs.
func (e *Engine) waited(m *member) time.Duration {
	longest := time.Duration(0)
	for id, since := range m.asked {
		o := e.byID[id]
		shared := o != nil && o.id == id && (o.writes() || o.kind == replication.Sync)
		if !shared || o.acked&^m.bit != 0 {
			longest = max(longest, e.ran-since)
		}
	}
	return longest
}

// askElsewhere asks other members for reads that m is slow to answer; its own answer then counts no more, but it still
// owes it, and new reads go elsewhere for a while.
func (e *Engine) askElsewhere(m *member) {
	for _, o := range e.active {
		if o.kind != replication.Read || o.reader != m || o.inHand || e.ran-m.asked[o.id] < e.opts.SlowAfter/4 {
			continue
		}
		o.avoid |= m.bit
		for _, other := range e.members {
			if other.usable() && o.avoid&other.bit == 0 {
				m.readsAgain = e.ran + e.opts.SlowFor
				e.ask(o)
				break
			}
		}
		o.avoid &^= m.bit
	}
}

func (e *Engine) ping(m *member) {
	m.pinged = e.now
	e.send(m, replication.Message{Kind: replication.Ping, Stamp: e.now})
}
