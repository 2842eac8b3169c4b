package simulation

import (
	"slices"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// engineProcess drives one engine and the client that uses it.
type engineProcess struct {
	process
	w        *World
	number   int
	engine   *engine.Engine
	sessions map[engine.Session]*conn
	client   *client
	writer   *writer // the engine as the checker knows it
	started  time.Duration

	phase     engine.Phase
	reason    fault.Kind
	lossy     bool
	warned    time.Duration // when it last reported a loss
	settled   bool
	epoch     volume.Epoch
	detaching bool
}

// attach starts a new engine on a machine, for the record as read from the store.
func (w *World) attach(m *machine, record volume.Configuration) *engineProcess {
	w.stats.Attachments++
	p := &engineProcess{
		process: process{machine: m}, w: w, number: w.stats.Attachments, sessions: map[engine.Session]*conn{},
		started: w.now,
	}
	p.writer = w.register.newWriter()
	p.client = newClient(p)
	o := w.profile.engine
	o.Engine, o.Node, o.Mode, o.Local = w.identity(), "machine", "explicit", m.pool
	o.NewGeneration = func() volume.GenerationID { return w.identity() }
	o.Bugs = w.config.Bugs
	w.log("engine %d: starts on machine %d as %x for %s", p.number, m.index, o.Engine[:2], recordText(record))
	p.engine = engine.New(o, record, m.clock())
	m.engines = append(m.engines, p)
	p.drain()
	p.tick()
	return p
}

// call hands an input to the engine and carries out what follows from it.
func (p *engineProcess) call(input func()) {
	p.deliver(func() {
		p.engine.Clock(p.machine.clock())
		input()
		p.drain()
	})
}

func (p *engineProcess) tick() {
	if p.dead {
		return
	}
	if !p.stopped {
		p.engine.Tick(p.machine.clock())
		p.drain()
		if !p.dead {
			p.inspect()
		}
	}
	p.w.after(p.w.between(50*time.Millisecond, 100*time.Millisecond), p.tick)
}

// kill ends the process.
func (p *engineProcess) kill(power bool) {
	if p.dead {
		return
	}
	p.dead = true
	p.w.log("engine %d: dead", p.number)
	p.machine.engines = slices.DeleteFunc(p.machine.engines, func(o *engineProcess) bool { return o == p })
	p.w.closeAll(&p.process, power)
	p.client.dead()
}

// drain carries out what the engine asks for.
func (p *engineProcess) drain() {
	w, a := p.w, p.engine.Actions()
	for _, s := range a.Sends {
		p.watchCatchUp(s.Message)
		if w.tracing() {
			w.log("engine %d: s%d sends to %d %s", p.number, s.Session, s.Pool[0], messageText(s.Message))
		}
		if c := p.sessions[s.Session]; c != nil {
			c.send(0, s.Message)
		}
	}
	for _, q := range a.Proposals {
		p.propose(q)
	}
	for _, token := range a.Looks {
		w.store.look(p.machine, func(status fault.Kind, current volume.Configuration) {
			w.log("engine %d: looked: %v %s", p.number, status, shortRecord(status == fault.None, current))
			p.call(func() { p.engine.Looked(token, status, current) })
		})
	}
	for _, pool := range a.Dials {
		p.dial(pool)
	}
	for _, h := range a.Hangups {
		if c := p.sessions[h.Session]; c != nil {
			delete(p.sessions, h.Session)
			c.hangUp(0)
		}
	}
	for _, e := range a.Events {
		w.log("engine %d: event %s %d %s", p.number, e.Reason, e.Pool[0], e.Text)
		switch e.Reason {
		case "unflushed-lost":
			p.reportedLoss()
		case "catching-up", "replica-joined", "replica-left", "serving":
			w.faults.ambush(p, e.Pool)
		}
	}
	if p.phase < engine.Serving {
		p.inspect()
	}
	for _, c := range a.Completions {
		p.client.completed(c)
	}
}

// watchCatchUp shows how much is copied when replicas come back.
func (p *engineProcess) watchCatchUp(m replication.Message) {
	w := p.w
	if m.Kind == replication.CatchUp && m.Full {
		w.stats.CatchUps++
		if m.Bitmap.Count() == (w.profile.size+volume.BlockSize-1)/volume.BlockSize {
			w.stats.FullCopies++
			w.faults.inFullCopy(p)
		}
	}
}

func shortRecord(known bool, c volume.Configuration) string {
	if !known {
		return ""
	}
	return recordText(c)
}

func (p *engineProcess) propose(q engine.Proposal) {
	w := p.w
	w.log("engine %d: proposes %s", p.number, recordText(q.Next))
	w.store.propose(p.machine, q.Next, func(o engine.Outcome, current volume.Configuration) {
		w.log("engine %d: proposed: outcome %d %s", p.number, o, shortRecord(o != engine.Unknown, current))
		p.call(func() { p.engine.Proposed(q.Token, o, current) })
	})
}

func (p *engineProcess) dial(pool volume.PoolID) {
	w := p.w
	w.connect(&p.process, w.machineOf(pool), func(c *conn) {
		if c == nil {
			p.call(func() { p.engine.DialFailed(pool) })
			return
		}
		w.sessions++
		s := engine.Session(w.sessions)
		p.sessions[s] = c
		c.ends[0].received = func(m replication.Message) {
			if w.tracing() {
				w.log("engine %d: s%d receives from %d %s", p.number, s, pool[0], messageText(m))
			}
			w.mix(uint64(s), uint64(m.Kind)<<8|uint64(m.Status), m.ID)
			p.call(func() { p.engine.Receive(pool, s, m) })
		}
		c.ends[0].closed = func() {
			delete(p.sessions, s)
			p.call(func() { p.engine.Disconnected(pool, s) })
		}
		p.call(func() { p.engine.Connected(pool, s) })
	})
}

// inspect looks at the engine's status for what the checkers and the client must know.
func (p *engineProcess) inspect() {
	w := p.w
	st := p.engine.Status()
	if st.Phase != p.phase {
		w.log("engine %d: %v -> %v %s", p.number, p.phase, st.Phase, st.Text)
		was := p.phase
		p.phase, p.reason = st.Phase, st.Reason
		p.epoch = st.Record.Epoch
		if p.phase >= engine.Serving && was < engine.Serving && p.phase != engine.Ended {
			p.serves(st)
		}
	}
	if p.phase == engine.Ended {
		w.control.ended(p)
		return
	}
	if p.phase == engine.Serving {
		if st.Lossy && !p.lossy {
			p.reportedLoss()
		}
		if st.Doubtful == 0 && !p.settled {
			p.settled = true
			w.truth.settled(p)
		}
		if st.Suspended != "" {
			w.stats.Suspensions++
		}
		p.client.pump()
	}
}

// serves: from now on the writes of all older engines have happened or never will.
func (p *engineProcess) serves(st engine.Status) {
	w := p.w
	w.stats.Served++
	p.writer.epoch = p.epoch
	w.register.serve(p.writer, w.now)
	if st.Lossy {
		p.reportedLoss()
	}
	w.truth.served(p, st.Lossy)
}

// reportedLoss: the engine says that writes that were not flushed may be lost.
func (p *engineProcess) reportedLoss() {
	p.warned = p.w.now
	if !p.lossy {
		p.lossy = true
		p.w.stats.Lossy++
	}
	p.w.truth.reported(p)
}
