package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// rig runs one volume: replicas with a toy medium, a toy cluster store, and at most two engines, old and new.
type rig struct {
	out       strings.Builder
	nodes     []*node
	record    volume.Configuration
	revision  volume.Revision
	saved     volume.Configuration // a copy of the cluster store
	storeDown bool
	keep      bool     // the store takes proposals, its answers stay away for now
	answers   []func() // kept
	engines   map[string]*host
	options   engine.Options // of engines that are attached from now on
	logLimit  int
	noCopies  map[[2]*node]bool // replicas that cannot reach each other
	now       time.Duration
	random    byte
	session   uint64
	stuck     bool // the last command did not settle
}

// node is one replica.
type node struct {
	name    string
	pool    volume.PoolID
	rep     *replica.Replica
	medium  *medium
	down    bool
	opened  int // sessions of engines since somebody counted
	fetches map[uint64]func(replication.Message)
	engines map[replica.Session]func(replication.Message)
}

// host is one engine.
type host struct {
	name    string
	eng     *engine.Engine
	cut     map[string]bool // nodes it cannot reach
	paused  bool
	inbox   []func()
	nextReq uint64
	asked   map[uint64]string // not answered yet
	series  map[string]int    // answers to a series, by status; nil: print them
	links   map[volume.PoolID]link
}

type link struct {
	n       *node
	session replica.Session
	es      engine.Session
}

type piece struct {
	from, to uint64 // sectors
	data     []string
}

func poolID(i int) (p volume.PoolID) { p[15] = byte(i + 1); return p }

func newRig(replicas int, size uint64, logLimit int) *rig {
	r := &rig{engines: map[string]*host{}, noCopies: map[[2]*node]bool{}, logLimit: logLimit}
	r.options = engine.Options{
		Mode: "explicit", PingInterval: time.Second, PingTimeout: 5 * time.Second, Lease: 5 * time.Second,
		AttachWait: 5 * time.Second, CopyDeadline: 10 * time.Second, SyncInterval: 2 * time.Second,
		RetryDelay: 100 * time.Millisecond, Copies: 2, CopyBlocks: 16,
		NewGeneration: func() (g volume.GenerationID) { r.random++; g[0] = r.random; return g },
	}
	cfg := volume.Configuration{
		Name: "tea", Size: size, Layout: volume.Mirrored(size, 1<<20), Protocol: "C", Generation: 1,
		GenerationID: volume.GenerationID{1}, Groups: []volume.Group{{}},
	}
	cfg.Volume[0] = 7
	for i := range replicas {
		cfg.Groups[0].Members = append(cfg.Groups[0].Members, volume.Member{Pool: poolID(i), InSync: true})
	}
	r.revision = 1
	cfg.Revision = 1
	r.record = cfg
	for i := range replicas {
		n := &node{name: string(rune('a' + i)), pool: poolID(i), medium: newMedium()}
		n.medium.stored.State = volume.ReplicaState{
			Volume: cfg.Volume, Pool: n.pool, Accepted: cfg.Clone(), History: []volume.GenerationID{cfg.GenerationID},
		}
		r.nodes = append(r.nodes, n)
		r.boot(n)
	}
	return r
}

// boot starts a replica from what its medium holds.
func (r *rig) boot(n *node) {
	r.random++
	s := n.medium.open()
	s.Incarnation[0] = r.random
	n.rep = replica.New(replica.Options{LogLimit: r.logLimit, RecentLimit: 64}, s)
	n.rep.SetSpace(n.medium.space())
	n.fetches, n.engines = map[uint64]func(replication.Message){}, map[replica.Session]func(replication.Message){}
	n.down = false
}

func (r *rig) attach(name, local string) *host {
	h := &host{name: name, cut: map[string]bool{}, asked: map[uint64]string{}, links: map[volume.PoolID]link{}}
	r.random++
	o := r.options
	o.Node = name
	o.Engine[0] = r.random
	if n := r.node(local); n != nil {
		o.Local = n.pool
	}
	record := r.record.Clone()
	record.Revision = r.revision
	h.eng = engine.New(o, record, r.now)
	r.engines[name] = h
	return h
}

func (r *rig) node(name string) *node {
	for _, n := range r.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (r *rig) pool(p volume.PoolID) *node { return r.nodes[p[15]-1] }

func (r *rig) hosts() []*host {
	var names []string
	for name := range r.engines {
		names = append(names, name)
	}
	slices.Sort(names)
	var out []*host
	for _, name := range names {
		out = append(out, r.engines[name])
	}
	return out
}

// settle carries out actions until nothing moves.
func (r *rig) settle() {
	for range 10000 {
		moved := false
		for _, h := range r.hosts() {
			if h.paused {
				continue
			}
			for n := 0; n < 50 && len(h.inbox) > 0; n++ {
				f := h.inbox[0]
				h.inbox = h.inbox[1:]
				f()
				moved = true
				moved = r.carryEngine(h) || moved
			}
			moved = r.carryEngine(h) || moved
		}
		for _, n := range r.nodes {
			moved = r.carryReplica(n) || moved
		}
		if !moved {
			return
		}
	}
	r.stuck = true
	fmt.Fprintln(&r.out, "DOES NOT SETTLE")
}

func (r *rig) carryEngine(h *host) bool {
	a := *h.eng.Actions()
	moved := len(a.Sends)+len(a.Completions)+len(a.Proposals)+len(a.Looks)+len(a.Dials)+len(a.Hangups)+len(a.Events) > 0
	sends, hangups := slices.Clone(a.Sends), slices.Clone(a.Hangups)
	for _, ev := range a.Events {
		who := ""
		if ev.Pool != (volume.PoolID{}) {
			who = " " + r.pool(ev.Pool).name
		}
		fmt.Fprintf(&r.out, "%s: %s%s: %s", h.name, ev.Reason, who, ev.Text)
		if ev.Bytes > 0 {
			fmt.Fprintf(&r.out, " (%d KiB)", ev.Bytes>>10)
		}
		fmt.Fprintln(&r.out)
	}
	for _, c := range a.Completions {
		if h.series != nil {
			h.series[c.Status.String()]++
		} else {
			fmt.Fprintf(&r.out, "%s: %s: %s%s\n", h.name, h.asked[c.ID], c.Status, show(c.Payload))
		}
		delete(h.asked, c.ID)
	}
	for _, p := range a.Proposals {
		h.inbox = append(h.inbox, func() { r.propose(h, p) })
	}
	for _, token := range a.Looks {
		h.inbox = append(h.inbox, func() {
			if r.storeDown {
				h.eng.Looked(token, fault.Unavailable, volume.Configuration{})
				return
			}
			c := r.record.Clone()
			c.Revision = r.revision
			h.eng.Looked(token, fault.None, c)
		})
	}
	for _, s := range sends {
		l := h.links[s.Pool]
		if l.es == s.Session && !l.n.down && !h.cut[l.n.name] {
			l.n.rep.Receive(l.session, s.Message)
			r.carryReplica(l.n)
		}
	}
	for _, g := range hangups {
		if l := h.links[g.Pool]; l.es == g.Session {
			l.n.rep.Close(l.session)
			delete(l.n.engines, l.session)
			delete(h.links, g.Pool)
		}
	}
	for _, p := range slices.Clone(a.Dials) {
		h.inbox = append(h.inbox, func() { r.connect(h, p) })
	}
	return moved
}

// propose carries out a compare-and-swap as engine.Proposal asks for it.
func (r *rig) propose(h *host, p engine.Proposal) {
	if r.storeDown {
		h.eng.Proposed(p.Token, engine.Unknown, volume.Configuration{})
		return
	}
	outcome, next := engine.Conflict, p.Next
	other := next.Epoch == r.record.Epoch && next.Engine != r.record.Engine && next.Engine != volume.EngineID{}
	if next.Revision == r.revision && next.Epoch >= r.record.Epoch && !other {
		outcome = engine.Applied
		r.revision++
		r.record = next.Clone()
	}
	c := r.record.Clone()
	c.Revision = r.revision
	answer := func() { h.eng.Proposed(p.Token, outcome, c) }
	if r.keep {
		r.answers = append(r.answers, func() { h.inbox = append(h.inbox, answer) })
		return
	}
	answer()
}

func (r *rig) connect(h *host, pool volume.PoolID) {
	n := r.pool(pool)
	if n.down || h.cut[n.name] {
		h.eng.DialFailed(pool)
		return
	}
	r.session++
	s, es := replica.Session(r.session), engine.Session(r.session)
	n.opened++
	n.rep.Open(s)
	h.links[pool] = link{n, s, es}
	n.engines[s] = func(m replication.Message) {
		h.inbox = append(h.inbox, func() { h.eng.Receive(pool, es, m) })
	}
	h.eng.Connected(pool, es)
}

func (r *rig) carryReplica(n *node) bool {
	if n.down {
		return false
	}
	a := *n.rep.Actions()
	disk, sends := slices.Clone(a.Disk), slices.Clone(a.Sends)
	fetches, hangups := slices.Clone(a.Fetches), slices.Clone(a.Hangups)
	for _, ev := range a.Events {
		fmt.Fprintf(&r.out, "%s: %s: %s\n", n.name, ev.Reason, ev.Text)
	}
	for _, s := range sends {
		if f := n.engines[s.Session]; f != nil {
			f(s.Message)
		} else if f := n.fetches[uint64(s.Session)]; f != nil {
			f(s.Message)
		}
	}
	for _, s := range hangups {
		for _, h := range r.hosts() {
			for pool, l := range h.links {
				if l.n == n && l.session == s {
					h.inbox = append(h.inbox, func() {
						if h.links[pool].es == l.es {
							delete(h.links, pool)
						}
						h.eng.Disconnected(pool, l.es)
					})
				}
			}
		}
	}
	for _, f := range fetches {
		src := r.pool(f.Source)
		if src.down || r.noCopies[[2]*node{n, src}] {
			n.rep.Fetched(replica.FetchResult{Token: f.Token, Status: fault.Unavailable})
			continue
		}
		r.session++
		s := r.session
		src.rep.Open(replica.Session(s))
		src.fetches[s] = func(m replication.Message) {
			n.rep.Fetched(replica.FetchResult{Token: f.Token, Status: m.Status, Payload: m.Payload})
		}
		src.rep.Receive(replica.Session(s), replication.Message{
			Kind: replication.Fetch, Volume: r.record.Volume, Pool: f.Source, ID: 1, Range: f.Range, Fence: f.Fence,
		})
		r.carryReplica(src)
	}
	for _, q := range disk {
		if res, done := n.medium.submit(q); done {
			n.rep.Done(res)
		}
	}
	return len(disk)+len(sends)+len(fetches)+len(hangups) > 0
}
