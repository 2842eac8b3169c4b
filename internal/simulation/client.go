package simulation

import (
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// client uses one engine: it keeps a number of requests under way and tells the checkers what it sees.
type client struct {
	p       *engineProcess
	w       *World
	depth   int
	next    uint64
	pending map[uint64]*request // looked up only, never walked
	order   []*request
	waiting bool // a submission is planned
	quiet   bool // starts nothing new
	errors  int
}

// request is one I/O under way.
type request struct {
	engine.Request
	begun time.Duration
	write *write
	done  func(fault.Kind)
}

func newClient(p *engineProcess) *client {
	w := p.w
	return &client{p: p, w: w, depth: 1 + w.rng.IntN(w.profile.depth), pending: map[uint64]*request{}}
}

// pump plans the next submission if there is room for it.
func (c *client) pump() {
	if c.waiting || c.quiet || c.p.dead || len(c.pending) >= c.depth || c.p.phase != engine.Serving {
		return
	}
	c.waiting = true
	pause := c.w.around(c.w.profile.think)
	c.w.after(pause, func() {
		c.waiting = false
		if c.quiet || c.p.dead || c.p.phase != engine.Serving {
			return
		}
		batch := 1
		if c.w.chance(0.3) {
			batch += c.w.rng.IntN(4)
		}
		c.p.deliver(func() {
			var requests []*request
			for range batch {
				if len(c.pending)+len(requests) < c.depth {
					requests = append(requests, &request{Request: c.invent()})
				}
			}
			c.submit(requests)
		})
		c.pump()
	})
}

// submit hands requests to the engine. It runs inside the engine's process.
func (c *client) submit(requests []*request) {
	w, batch := c.w, make([]engine.Request, 0, len(requests))
	for _, q := range requests {
		c.next++
		q.ID, q.begun = c.next, w.now
		switch q.Op {
		case replication.Write, replication.Zero:
			q.write = w.register.begin(c.p.writer, q.Range, q.Op == replication.Zero, w.now)
			if q.Op == replication.Write {
				q.Payload = q.write.stamp
			}
		case replication.Read:
			w.register.startRead(w.now)
		}
		w.stats.Requests++
		c.pending[q.ID] = q
		c.order = append(c.order, q)
		batch = append(batch, q.Request)
		if w.tracing() {
			w.log("client %d: %s %d %d+%d fua %v punch %v #%v", c.p.number, kindNames[q.Op], q.ID, q.Range.Offset,
				q.Range.Length, q.FUA, q.Punch, q.Payload)
		}
	}
	c.p.engine.Clock(c.p.machine.clock())
	c.p.engine.Submit(batch)
	c.p.drain()
}

// completed takes an answer of the engine.
func (c *client) completed(a engine.Completion) {
	w, q := c.w, c.pending[a.ID]
	if w.tracing() {
		w.log("client %d: answer %d %v%s", c.p.number, a.ID, a.Status, payloadText(a.Payload))
	}
	w.mix(a.ID, uint64(a.Status), uint64(c.p.number))
	if c.p.dead {
		return
	}
	if q == nil {
		w.fail("engine %d answers request %d, which is not under way", c.p.number, a.ID)
		return
	}
	c.forget(q)
	if a.Status == fault.None && c.p.phase == engine.Ended {
		w.fail("rule 9: engine %d answers request %d after its end", c.p.number, a.ID)
	}
	switch {
	case q.Op == replication.Read:
		w.register.finishRead(q.begun)
		if a.Status == fault.None {
			c.checkRead(q, a)
		}
	case a.Status == fault.None:
		c.succeeded(q)
	case a.Status == fault.NoSpace && q.write != nil:
		w.register.refuse(q.write)
		w.stats.NoSpace++
	}
	if a.Status == fault.None {
		w.stats.Successes++
	} else {
		c.errors++
		w.stats.Errors++
	}
	if q.done != nil {
		q.done(a.Status)
	}
	c.pump()
}

func payloadText(p replication.Payload) string {
	if pieces, ok := p.([]Piece); ok {
		return piecesText(pieces)
	}
	return ""
}

func (c *client) forget(q *request) {
	delete(c.pending, q.ID)
	for i, o := range c.order {
		if o == q {
			c.order = append(c.order[:i], c.order[i+1:]...)
			return
		}
	}
}

func (c *client) checkRead(q *request, a engine.Completion) {
	pieces, ok := a.Payload.([]Piece)
	at := q.Range.Offset
	for _, p := range pieces {
		if p.Range.Offset != at {
			ok = false
		}
		at = p.Range.End()
	}
	if !ok || at != q.Range.End() {
		c.w.fail("engine %d answers the read of %v with %v", c.p.number, q.Range, a.Payload)
		return
	}
	c.w.register.read(q.begun, c.w.now, pieces)
}

func (c *client) succeeded(q *request) {
	w := c.w
	if q.Op == replication.Sync {
		w.register.flush(q.begun)
		w.truth.flushed(c.p, q.begun)
		c.checkFlushed(q)
		return
	}
	c.checkApplied(q)
	w.register.acknowledge(q.write, w.now, q.FUA, c.p.warned)
}

// ours tells whether the engine still owns the true record.
func (c *client) ours() bool {
	return !c.w.store.restored && c.w.store.current.Epoch == c.p.epoch
}

// checkApplied: a write is acknowledged only after every replica that the record names in-sync has applied it
// (rules 1 and 2).
func (c *client) checkApplied(q *request) {
	if q.Op != replication.Write || !c.ours() {
		return
	}
	for _, m := range c.w.store.inSync() {
		if !m.disk.applied[q.write.stamp] {
			c.w.fail("rule 2: write #%d is acknowledged, in-sync replica %d never applied it", q.write.stamp, m.index)
		}
	}
	c.checkRemoval(q.write)
}

// checkRemoval: an acknowledgement that relies on the latest removal comes only after every remaining member has
// that generation durably (rule 2).
func (c *client) checkRemoval(q *write) {
	s := c.w.store
	relies := false
	for _, rm := range s.current.Groups[0].Members {
		relies = relies || !rm.InSync && rm.Last+1 == s.current.Generation && !c.w.machineOf(rm.Pool).disk.applied[q.stamp]
	}
	if !relies {
		return
	}
	for _, m := range s.inSync() {
		if g := m.disk.accepted; g < s.current.Generation {
			c.w.fail("rule 2: write #%d is acknowledged by virtue of generation %d, replica %d has accepted only %d",
				q.stamp, s.current.Generation, m.index, g)
		}
	}
}

// checkFlushed: after a sync, every in-sync replica has on its medium what it shows of writes that were acknowledged
// before the sync was submitted (rule 5).
func (c *client) checkFlushed(q *request) {
	if !c.ours() {
		return
	}
	for _, m := range c.w.store.inSync() {
		for _, u := range m.disk.unsynced {
			for _, p := range u.pieces {
				if u.always || p.Stamp < firstReal {
					continue
				}
				o := c.w.register.writes[p.Stamp-firstReal]
				if o.acked < q.begun && o.writer == c.p.writer && m.disk.shownOnly(p) {
					c.w.fail("rule 5: a sync submitted at %.6f is acknowledged, replica %d has write #%d in its cache only",
						q.begun.Seconds(), m.index, p.Stamp)
					return
				}
			}
		}
	}
}

// dead: the engine is gone, what was under way stays open for ever.
func (c *client) dead() {
	for _, q := range c.order {
		if q.Op == replication.Read {
			c.w.register.finishRead(q.begun)
		}
	}
	c.order, c.pending = nil, map[uint64]*request{}
}

// invent makes up a request.
func (c *client) invent() engine.Request {
	w, p := c.w, &c.w.profile
	var q engine.Request
	switch x := w.rng.Float64(); {
	case x < p.writes:
		q = engine.Request{Op: replication.Write, Range: w.place(), FUA: w.chance(0.06)}
	case x < p.writes+p.reads:
		q = engine.Request{Op: replication.Read, Range: w.place()}
	case x < p.writes+p.reads+p.zeroes:
		q = engine.Request{Op: replication.Zero, Range: w.place(), FUA: w.chance(0.06), Punch: w.chance(0.6)}
	default:
		q = engine.Request{Op: replication.Sync}
	}
	return q
}

// place draws a range: mostly small, often near one of a few hot spots, seldom aligned, at times very long.
func (w *World) place() volume.Range {
	p := &w.profile
	var length uint64
	switch x := w.rng.Float64(); {
	case x < 0.50:
		length = 1 + w.rng.Uint64N(16)
	case x < 0.80:
		length = 1 + w.rng.Uint64N(256)
	case x < 0.96:
		length = 1 + w.rng.Uint64N(2048)
	case x < 0.99:
		length = 1 + w.rng.Uint64N(16384)
	default:
		length = 1 + w.rng.Uint64N(volume.MaxRequest/volume.SectorSize)
	}
	sectorCount := p.size / volume.SectorSize
	length = min(length, sectorCount, volume.MaxRequest/volume.SectorSize)
	start := w.rng.Uint64N(sectorCount - length + 1)
	if len(p.hot) > 0 && w.chance(0.75) {
		spot := p.hot[w.rng.IntN(len(p.hot))] / volume.SectorSize
		spot += w.rng.Uint64N(64)
		spot -= min(spot, w.rng.Uint64N(min(length, 64)+1))
		start = min(spot, sectorCount-length)
	}
	return volume.Range{Offset: start * volume.SectorSize, Length: length * volume.SectorSize}
}
