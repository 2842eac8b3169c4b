package simulation

import (
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// replicaProcess drives one run of a replica, as a driver would with sockets and files.
type replicaProcess struct {
	process
	replica     *replica.Replica
	incarnation volume.Incarnation
	sessions    map[replica.Session]*side
	started     time.Duration
	restarting  bool // a restart after failed metadata is planned
}

// side is the replica's end of a connection.
type side struct {
	conn  *conn
	at    int
	fence volume.Fence // of its hello
}

// accept opens a session for a connection that came in.
func (p *replicaProcess) accept(c *conn) {
	w := p.machine.w
	w.sessions++
	s := replica.Session(w.sessions)
	here := &side{conn: c, at: 1}
	p.sessions[s] = here
	c.ends[1].received = func(m replication.Message) {
		if w.tracing() {
			w.log("replica %d: s%d receives %s", p.machine.index, s, messageText(m))
		}
		w.mix(uint64(s), uint64(m.Kind)<<8|uint64(m.Status), m.ID)
		if m.Kind == replication.Hello {
			here.fence = m.Fence
		}
		p.arrive(m)
		p.replica.Receive(s, m)
		p.drain()
	}
	c.ends[1].closed = func() {
		delete(p.sessions, s)
		p.replica.Close(s)
		p.drain()
	}
	p.replica.Open(s)
	p.drain()
}

func takesSpace(k replication.Kind) bool {
	return k == replication.Write || k == replication.Zero || k == replication.Copy
}

// arrive counts a request against the promises before the replica sees it.
func (p *replicaProcess) arrive(m replication.Message) {
	if sp := p.machine.disk.space; sp.on && takesSpace(m.Kind) {
		sp.consumed += m.Range.Length
		sp.arrived += m.Range.Length
		p.replica.SetSpace(sp.free())
	}
}

func (p *replicaProcess) space() { p.replica.SetSpace(p.machine.disk.space.free()) }

// drain carries out what the replica asks for.
func (p *replicaProcess) drain() {
	w, a := p.machine.w, p.replica.Actions()
	for _, q := range a.Disk {
		p.startDisk(q)
	}
	for _, s := range a.Sends {
		here := p.sessions[s.Session]
		if here == nil {
			continue
		}
		p.leave(s, here)
		here.conn.send(here.at, s.Message)
	}
	for _, f := range a.Fetches {
		p.fetch(f)
	}
	for _, s := range a.Hangups {
		if here := p.sessions[s]; here != nil {
			delete(p.sessions, s)
			here.conn.hangUp(here.at)
		}
	}
	for _, e := range a.Events {
		w.log("replica %d: event %s %s", p.machine.index, e.Reason, e.Text)
	}
	if p.replica.Failed() && !p.restarting && !p.machine.unopened {
		p.restarting = true
		m := p.machine
		w.after(w.between(50*time.Millisecond, 2*time.Second), func() {
			if m.replica == p {
				m.restartReplica(w.between(0, 200*time.Millisecond))
			}
		})
	}
}

// leave looks at what the replica says before it goes out.
func (p *replicaProcess) leave(s replica.Send, here *side) {
	w, sp := p.machine.w, p.machine.disk.space
	m := s.Message
	if w.tracing() {
		w.log("replica %d: s%d sends %s", p.machine.index, s.Session, messageText(m))
	}
	switch m.Kind {
	case replication.Welcome:
		if n := p.machine.disk.writesUnderWay(); n > 0 {
			w.fail("rule 8: replica %d welcomes epoch %d with %d older writes under way", p.machine.index, here.fence.Epoch, n)
		}
		if d := p.machine.disk.meta.state.Fence; d != here.fence {
			w.fail("rule 8: replica %d welcomes epoch %d, but its durable fence is %d", p.machine.index, here.fence.Epoch, d.Epoch)
		}
		sp.promised, sp.consumed, sp.arrived = 0, 0, 0
		sp.promised = m.Credit
	case replication.Ack, replication.Pong:
		sp.promised = max(sp.promised, m.Credit)
	}
}

func (p *replicaProcess) startDisk(q replica.DiskRequest) {
	d := p.machine.disk
	switch {
	case changes(q.Op):
		d.checkFence(q)
		d.checkLog(q)
	case q.Op == replica.DiskSync:
		d.countSync()
	}
	d.submit(q, func(res replica.DiskResult) {
		if changes(q.Op) {
			d.space.finish(q.Range.Length)
		}
		p.deliver(func() {
			p.space()
			p.replica.Done(res)
			p.drain()
		})
	})
}

// checkFence: no write of an older engine starts once a newer one's fence is durable.
func (d *disk) checkFence(q replica.DiskRequest) {
	stamp, ok := q.Payload.(uint64)
	if !ok || q.Op != replica.DiskWrite {
		return
	}
	if epoch := d.w.register.epochOf(stamp); epoch < d.meta.state.Fence.Epoch {
		d.w.fail("rule 8: replica %d starts write #%d of epoch %d behind fence %d", d.machine.index, stamp, epoch,
			d.meta.state.Fence.Epoch)
	}
}

// checkLog: the regions of a write are in the durable log before it is submitted (rule 13).
func (d *disk) checkLog(q replica.DiskRequest) {
	if !d.w.config.CheckLog {
		return
	}
	from, to := replication.Regions(q.Range)
	for n := from; n < to; n++ {
		if !d.meta.logged(n) {
			d.w.fail("rule 13: replica %d writes %v while region %d is not in its log", d.machine.index, q.Range, n)
			return
		}
	}
}

// fetch gets a range from another replica over a connection of its own.
func (p *replicaProcess) fetch(f replica.Fetch) {
	w := p.machine.w
	ended := false
	end := func(status fault.Kind, payload replication.Payload) {
		if ended {
			return
		}
		ended = true
		p.deliver(func() {
			p.replica.Fetched(replica.FetchResult{Token: f.Token, Status: status, Payload: payload})
			p.drain()
		})
	}
	source := w.machineOf(f.Source)
	if source == nil {
		w.fail("replica %d fetches from a pool that does not exist", p.machine.index)
		return
	}
	if w.noCopies(p.machine, source) {
		w.after(w.between(10*time.Millisecond, time.Second), func() { end(fault.Unavailable, nil) })
		return
	}
	w.connect(&p.process, source, func(c *conn) {
		if c == nil {
			end(fault.Unavailable, nil)
			return
		}
		c.ends[0].closed = func() { end(fault.Unavailable, nil) }
		c.ends[0].received = func(m replication.Message) {
			c.hangUp(0)
			if m.Kind == replication.Fetched && m.ID == f.Token && !w.noCopies(p.machine, source) {
				end(m.Status, m.Payload)
			} else {
				end(fault.Unavailable, nil)
			}
		}
		w.after(w.between(2*time.Second, 6*time.Second), func() {
			c.hangUp(0)
			end(fault.Unavailable, nil)
		})
		c.send(0, replication.Message{
			Kind: replication.Fetch, ID: f.Token, Range: f.Range, Fence: f.Fence, Volume: w.volume, Pool: f.Source,
		})
	})
}

// connect makes a connection from a process to the replica on a machine; ready gets nil if that fails.
func (w *World) connect(from *process, to *machine, ready func(*conn)) {
	out, back := w.link(from.machine, to), w.link(to, from.machine)
	refused := func(d time.Duration) {
		w.after(d, func() { from.deliver(func() { ready(nil) }) })
	}
	if out.cut {
		refused(w.between(10*time.Millisecond, time.Second))
		return
	}
	w.after(w.delay(out), func() {
		p := to.replica
		switch {
		case from.dead:
			return
		case p == nil && to.up:
			refused(w.delay(back)) // nobody listens
			return
		case p == nil:
			refused(w.between(10*time.Millisecond, time.Second))
			return
		}
		c := w.newConn(from, &p.process)
		idle := func() {}
		c.ends[0].closed, c.ends[0].received = idle, func(replication.Message) {}
		c.ends[1].closed, c.ends[1].received = idle, func(replication.Message) {}
		p.deliver(func() {
			if c.ends[1].open {
				p.accept(c)
			}
		})
		if back.cut {
			c.ends[0].open = false
			c.breakLater(1)
			refused(w.between(10*time.Millisecond, time.Second))
			return
		}
		at := w.now + w.delay(back)
		c.dirs[1].last = max(c.dirs[1].last, at)
		w.plan(at, func() {
			from.deliver(func() {
				if c.ends[0].open {
					ready(c)
				} else {
					ready(nil)
				}
			})
		})
	})
}
