package simulation

import (
	"slices"
	"time"

	"samovar/internal/replication"
)

// link is one direction between two machines.
type link struct {
	cut  bool
	slow time.Duration // added to every delay
}

// process is one run of a program on a machine. A stopped one (SIGSTOP) takes its inputs when it goes on.
type process struct {
	machine *machine
	dead    bool
	stopped bool
	inbox   []func()
}

// deliver hands an input to the process.
func (p *process) deliver(input func()) {
	switch {
	case p.dead:
	case p.stopped:
		p.inbox = append(p.inbox, input)
	default:
		input()
	}
}

// resume lets a stopped process go on; everything that waited comes at once.
func (p *process) resume() {
	p.stopped = false
	for !p.dead && !p.stopped && len(p.inbox) > 0 {
		input := p.inbox[0]
		p.inbox = p.inbox[1:]
		input()
	}
}

// end is one end of a connection.
type end struct {
	process  *process
	open     bool
	received func(replication.Message)
	closed   func() // the connection broke or was closed by the other end
}

// conn is an ordered connection. What is sent into a cut link waits; if the link does not come back in time, each
// end learns at a time of its own that the connection is gone.
type conn struct {
	w    *World
	ends [2]end
	dirs [2]direction // dirs[i] carries what ends[i] sends
}

type direction struct {
	last    time.Duration // when the last message arrives
	stalled int           // how often the link was found cut; 0: not now
	stalls  int
	waiting []replication.Message
}

func (w *World) newConn(a, b *process) *conn {
	c := &conn{w: w}
	c.ends[0] = end{process: a, open: true}
	c.ends[1] = end{process: b, open: true}
	w.conns = append(w.conns, c)
	if len(w.conns) > 64 {
		w.conns = slices.DeleteFunc(w.conns, func(c *conn) bool { return !c.ends[0].open && !c.ends[1].open })
	}
	return c
}

func (w *World) link(from, to *machine) *link { return &w.links[from.index][to.index] }

// cutCopies keeps two replicas from reaching each other, whatever engines reach.
func (w *World) cutCopies(a, b *machine) {
	w.copyCuts[[2]int{a.index, b.index}], w.copyCuts[[2]int{b.index, a.index}] = true, true
}

func (w *World) noCopies(a, b *machine) bool { return w.copyCuts[[2]int{a.index, b.index}] }

// delay draws the time that a message takes on a link.
func (w *World) delay(l *link) time.Duration {
	d := 30*time.Microsecond + w.around(w.profile.latency) + l.slow
	if w.chance(w.profile.stragglers) {
		d += w.between(0, 40*w.profile.latency)
	}
	return d
}

func (c *conn) link(from int) *link {
	return c.w.link(c.ends[from].process.machine, c.ends[1-from].process.machine)
}

// send puts a message on its way.
func (c *conn) send(from int, m replication.Message) {
	if !c.ends[from].open {
		return
	}
	m = cloneMessage(m)
	d := &c.dirs[from]
	if l := c.link(from); d.stalled > 0 || l.cut {
		d.waiting = append(d.waiting, m)
		c.stall(from)
		return
	}
	c.transmit(from, m)
}

func (c *conn) transmit(from int, m replication.Message) {
	d := &c.dirs[from]
	d.last = max(d.last, c.w.now+c.w.delay(c.link(from)))
	c.w.plan(d.last, func() {
		e := &c.ends[1-from]
		if !e.open {
			return
		}
		e.process.deliver(func() {
			if e.open {
				e.received(m)
			}
		})
	})
}

// stall starts the time after which the ends give the connection up.
func (c *conn) stall(from int) {
	d := &c.dirs[from]
	if d.stalled > 0 {
		return
	}
	d.stalls++
	d.stalled = d.stalls
	mark := d.stalled
	for side := range 2 {
		c.w.after(c.w.between(100*time.Millisecond, c.w.profile.breakAfter), func() {
			if d.stalled == mark {
				c.breakEnd(side)
			}
		})
	}
}

// healed sends what waited for a link.
func (c *conn) healed(from int) {
	d := &c.dirs[from]
	if d.stalled == 0 {
		return
	}
	d.stalled = 0
	waiting := d.waiting
	d.waiting = nil
	if !c.ends[from].open {
		c.breakLater(1 - from)
		return
	}
	for _, m := range waiting {
		c.transmit(from, m)
	}
}

// breakEnd lets one end find the connection broken.
func (c *conn) breakEnd(side int) {
	e := &c.ends[side]
	if !e.open {
		return
	}
	e.process.deliver(func() {
		if e.open {
			e.open = false
			e.closed()
		}
	})
}

// breakLater does so some time from now.
func (c *conn) breakLater(side int) {
	c.w.after(c.w.between(time.Millisecond, c.w.profile.breakAfter), func() { c.breakEnd(side) })
}

// hangUp closes one end in good order: the other end learns of it after all that was sent.
func (c *conn) hangUp(side int) {
	if !c.ends[side].open {
		return
	}
	c.ends[side].open = false
	d := &c.dirs[side]
	if l := c.link(side); d.stalled > 0 || l.cut {
		c.breakLater(1 - side)
		return
	}
	d.last = max(d.last, c.w.now+c.w.delay(c.link(side)))
	c.w.plan(d.last, func() { c.breakEnd(1 - side) })
}

// die closes one end because its process or machine is gone. A dead process resets its connections, which may
// overtake what it sent; of a dead machine the other end learns late.
func (c *conn) die(side int, power bool) {
	if !c.ends[side].open {
		return
	}
	switch {
	case power:
		c.ends[side].open = false
		c.breakLater(1 - side)
	case c.w.chance(0.5):
		c.ends[side].open = false
		c.w.after(c.w.delay(c.link(side)), func() { c.breakEnd(1 - side) })
	default:
		c.hangUp(side)
	}
}

// setLink cuts or heals a link, or makes it slow.
func (w *World) setLink(from, to *machine, l link) {
	was := w.link(from, to)
	healed := was.cut && !l.cut
	*was = l
	if !healed {
		return
	}
	for _, c := range w.conns {
		for side := range 2 {
			if c.ends[side].process.machine == from && c.ends[1-side].process.machine == to {
				c.healed(side)
			}
		}
	}
}

// cloneMessage copies what a wire would copy, so that neither end can change what the other holds.
func cloneMessage(m replication.Message) replication.Message {
	if m.Configuration != nil {
		c := m.Configuration.Clone()
		m.Configuration = &c
	}
	if m.Bitmap != nil {
		m.Bitmap = m.Bitmap.Clone()
	}
	if m.Record != nil {
		r := cloneRecord(*m.Record)
		m.Record = &r
	}
	if m.Knowledge != nil {
		k := *m.Knowledge
		k.Accepted = k.Accepted.Clone()
		k.History = slices.Clone(k.History)
		k.Doubt = slices.Clone(k.Doubt)
		if k.Missing != nil {
			k.Missing = k.Missing.Clone()
		}
		k.Records = slices.Clone(k.Records)
		for i := range k.Records {
			k.Records[i] = cloneRecord(k.Records[i])
		}
		m.Knowledge = &k
	}
	return m
}
