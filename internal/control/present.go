package control

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"samovar/internal/resource"
	"samovar/internal/volume"
)

// Version tells what this node runs.
func (c *Control) Version(context.Context) (resource.Version, error) { return c.opts.Version, nil }

// Nodes lists every node that ever was part of the cluster.
func (c *Control) Nodes(context.Context) ([]resource.Node, error) {
	if err := c.view.ready(); err != nil {
		return nil, err
	}
	var out []resource.Node
	each(c.view, "members/", func(name string, m memberRecord) {
		n := resource.Node{
			Name: name, Witness: m.Witness, Member: m.Member, API: m.API, Data: m.Data, NBD: slices.Clone(m.NBD),
			Cause: "it has no lease in the cluster store: it is down, cut off, or just restarted",
		}
		if m.Socket != "" {
			n.NBD = append(n.NBD, m.Socket)
		}
		if r, ok := find[nodeRecord](c.view, "nodes/"+name); ok {
			n.Online, n.Cause, n.Started, n.Version = true, "", r.Started, r.Version
		}
		if s, ok := find[statsRecord](c.view, "stats/"+name); ok && n.Online {
			n.Leader = s.Leader
			for _, e := range s.Engines {
				n.Attached = append(n.Attached, c.view.volumeName(e.Volume))
			}
		}
		each(c.view, "pools/", func(_ string, p poolRecord) {
			if p.Node == name {
				n.Pools = append(n.Pools, p.Name)
			}
		})
		out = append(out, n)
	})
	return out, nil
}

// Node finds a node.
func (c *Control) Node(ctx context.Context, name string) (resource.Node, error) {
	all, err := c.Nodes(ctx)
	if err != nil {
		return resource.Node{}, err
	}
	for _, n := range all {
		if n.Name == name {
			return n, nil
		}
	}
	return resource.Node{}, notFound("node", name)
}

// Pools lists the pools.
func (c *Control) Pools(context.Context) ([]resource.Pool, error) {
	if err := c.view.ready(); err != nil {
		return nil, err
	}
	return c.poolResources(), nil
}

func (c *Control) poolResources() []resource.Pool {
	var out []resource.Pool
	each(c.view, "pools/", func(_ string, p poolRecord) {
		r := resource.Pool{ID: p.ID.String(), Name: p.Name, Node: p.Node, Dir: p.Dir, Cause: "node " + p.Node + " is not online"}
		if s, ok := find[statsRecord](c.view, "stats/"+p.Node); ok && c.view.online(p.Node) {
			r.Cause = "being opened"
			for _, ps := range s.Pools {
				if ps.ID == p.ID {
					r.Online, r.Cause, r.Kind, r.Direct = ps.Online, ps.Cause, ps.Kind, ps.Direct
					r.Total, r.Free, r.Reserved, r.Leftover = ps.Total, ps.Free, ps.Reserved, ps.Leftover
					r.Replicas = len(ps.Used)
				}
			}
		}
		out = append(out, r)
	})
	slices.SortFunc(out, func(a, b resource.Pool) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Pool finds a pool by name.
func (c *Control) Pool(ctx context.Context, name string) (resource.Pool, error) {
	all, err := c.Pools(ctx)
	if err != nil {
		return resource.Pool{}, err
	}
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
	}
	return resource.Pool{}, notFound("pool", name)
}

// Volumes lists the volumes.
func (c *Control) Volumes(context.Context) ([]resource.Volume, error) {
	if err := c.view.ready(); err != nil {
		return nil, err
	}
	var out []resource.Volume
	each(c.view, "volumes/", func(_ string, cfg volume.Configuration) { out = append(out, c.volumeResource(cfg)) })
	slices.SortFunc(out, func(a, b resource.Volume) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Volume finds a volume by name.
func (c *Control) Volume(_ context.Context, name string) (resource.Volume, error) {
	if err := c.view.ready(); err != nil {
		return resource.Volume{}, err
	}
	if id, ok := c.view.volumeID(name); ok {
		if cfg, ok := find[volume.Configuration](c.view, volumeKey(id)); ok {
			return c.volumeResource(cfg), nil
		}
	}
	return resource.Volume{}, notFound("volume", name)
}

func (c *Control) volumeResource(cfg volume.Configuration) resource.Volume {
	w, _ := find[wantRecord](c.view, wantKey(cfg.Volume))
	v := resource.Volume{
		ID: cfg.Volume.String(), Name: cfg.Name, Size: cfg.Size, ExtentSize: cfg.Layout.ExtentSize, Copies: w.Copies,
		Verified: w.Verified, Epoch: uint64(cfg.Epoch), Generation: uint64(cfg.Generation), State: "detached",
	}
	e := c.engineOf(cfg)
	if cfg.Engine != (volume.EngineID{}) {
		v.Holder, v.Mode, v.State = cfg.Holder, cfg.Mode, "starting" // until the holder says more
		if !c.view.online(cfg.Holder) {
			v.State = "lost"
			v.Suspended = "its holder, node " + cfg.Holder + ", is not online; attach it again, on any node"
		}
	}
	if e != nil {
		v.Attached, v.Mode, v.State, v.Suspended = e.Phase == "serving" || e.Phase == "detaching", e.Mode, e.Phase, e.Suspended
		v.Epoch, v.Generation, v.Doubtful = e.Epoch, e.Generation, e.Doubtful
		v.Progress, v.Sent, v.Copied = e.Progress, e.Sent, e.Copied
		if v.State == "serving" {
			v.State = "attached"
			if v.Suspended != "" {
				v.State = "suspended"
			}
		}
	}
	inSync := 0
	for _, m := range members(cfg) {
		r := c.replicaResource(cfg, m, e)
		if r.State == "in-sync" {
			inSync++
		}
		v.Replicas = append(v.Replicas, r)
	}
	v.Redundant = inSync >= max(w.Copies, 1) && v.Doubtful == 0
	if v.Attached && e.Mode != modeRecovery {
		if m, ok := find[memberRecord](c.view, "members/"+cfg.Holder); ok {
			v.Address = addressOf(cfg.Name, cfg.Holder, m.NBD, m.Socket)
		}
	}
	return v
}

func addressOf(name, node string, nbd []string, socket string) *resource.Attachment {
	a := &resource.Attachment{Volume: name, Node: node, Socket: socket}
	if socket != "" {
		a.Local = "nbd+unix:///" + name + "?socket=" + socket
	}
	if len(nbd) > 0 {
		a.URI = "nbd://" + nbd[0] + "/" + name
	}
	return a
}

// engineOf finds what the holder says about a volume's engine.
func (c *Control) engineOf(cfg volume.Configuration) *engineStats {
	if cfg.Engine == (volume.EngineID{}) || !c.view.online(cfg.Holder) {
		return nil
	}
	if cfg.Holder == c.opts.Node {
		c.mu.Lock()
		h := c.held[cfg.Volume]
		c.mu.Unlock()
		if h == nil {
			return nil
		}
		e := c.engineStats(h)
		return &e
	}
	s, ok := find[statsRecord](c.view, "stats/"+cfg.Holder)
	if !ok {
		return nil
	}
	for i := range s.Engines {
		if s.Engines[i].Volume == cfg.Volume {
			return &s.Engines[i]
		}
	}
	return nil
}

func (c *Control) replicaResource(cfg volume.Configuration, m volume.Member, e *engineStats) resource.Replica {
	p, _ := c.view.pool(m.Pool)
	r := resource.Replica{Pool: p.Name, Node: p.Node, State: "absent"}
	if m.InSync {
		r.State = "in-sync"
	}
	if e != nil {
		for _, ms := range e.Members {
			if ms.Pool == m.Pool {
				r.State, r.Connected, r.OutOfSync, r.Cause = ms.State, ms.Connected, ms.OutOfSync, ms.Cause
			}
		}
	}
	s, ok := find[statsRecord](c.view, "stats/"+p.Node)
	if !ok || !c.view.online(p.Node) {
		if r.Cause == "" {
			r.Cause = "node " + p.Node + " is not online"
		}
		return r
	}
	for _, ps := range s.Pools {
		if ps.ID == m.Pool {
			r.Used = ps.Used[cfg.Volume.String()]
		}
	}
	for _, f := range s.Faults {
		if f.Pool == m.Pool && f.Volume == cfg.Volume {
			r.State, r.Cause = "damaged", f.Text
		}
	}
	return r
}

// Status is the cluster at a glance.
func (c *Control) Status(ctx context.Context) (resource.Status, error) {
	trouble, _ := c.view.state()
	s := resource.Status{Cluster: fmt.Sprintf("%x", c.opts.Cluster), Store: "ok"}
	if err := c.view.ready(); err != nil {
		s.Store = err.Error()
		s.Problems = append(s.Problems, s.Store)
		return s, nil
	}
	if trouble != "" {
		s.Store = trouble
		s.Problems = append(s.Problems, "the cluster store does not answer; I/O goes on, changes wait: "+trouble)
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return s, err
	}
	members, up := 0, 0
	for _, n := range nodes {
		s.Nodes++
		if n.Member {
			members++
		}
		if n.Online {
			s.Online++
			if n.Member {
				up++
			}
		} else {
			s.Problems = append(s.Problems, "node "+n.Name+" is not online")
		}
	}
	s.Survives = survives(members, up)
	if trouble != "" {
		s.Survives = "the cluster store does not answer: which nodes run is not known, and nothing can be decided"
	}
	for _, p := range c.poolResources() {
		s.Pools++
		s.Total += p.Total
		s.Free += p.Free
		if !p.Online {
			s.Problems = append(s.Problems, "pool "+p.Name+": "+p.Cause)
		}
		for _, l := range p.Leftover {
			s.Problems = append(s.Problems, "pool "+p.Name+" has a leftover: "+l)
		}
	}
	volumes, err := c.Volumes(ctx)
	if err != nil {
		return s, err
	}
	for _, v := range volumes {
		s.Volumes++
		if v.Attached {
			s.Attached++
		}
		if !v.Redundant {
			s.Degraded++
			s.Problems = append(s.Problems, "volume "+v.Name+" is not redundant (samovar volume info "+v.Name+")")
		}
		if v.Suspended != "" {
			s.Problems = append(s.Problems, "volume "+v.Name+": "+v.Suspended)
		}
		if v.Verified != nil && !v.Verified.Equal {
			s.Problems = append(s.Problems, "volume "+v.Name+": its copies differed when they were last compared")
		}
	}
	s.Healthy = len(s.Problems) == 0
	return s, nil
}

// survives says which loss of members of the cluster store stops automatic decisions.
func survives(members, up int) string {
	if members == 0 {
		return "the cluster store runs elsewhere"
	}
	majority := members/2 + 1
	switch spare := up - majority; {
	case spare < 0:
		return fmt.Sprintf("%d of %d members of the cluster store run, %d are needed: nothing can be decided", up, members, majority)
	case spare == 0:
		return fmt.Sprintf("%d of %d members of the cluster store run: the loss of one more stops automatic decisions", up, members)
	default:
		return fmt.Sprintf("%d of %d members of the cluster store run: %d more may be lost", up, members, spare)
	}
}

// Events lists events, oldest first.
func (c *Control) Events(_ context.Context, since string, limit int) ([]resource.Event, error) {
	if err := c.view.ready(); err != nil {
		return nil, err
	}
	all := c.eventsSince(since)
	if limit > 0 && len(all) > limit {
		if since == "" {
			return all[len(all)-limit:], nil
		}
		return all[:limit], nil
	}
	return all, nil
}

func (c *Control) eventsSince(since string) []resource.Event {
	var all []resource.Event
	each(c.view, "events/", func(id string, e resource.Event) {
		if id > since {
			all = append(all, e)
		}
	})
	return all
}

// Follow sends events as they happen. An event of a node whose clock is behind sorts before ones already sent: what
// was sent is remembered, so none is lost.
func (c *Control) Follow(ctx context.Context, since string) (<-chan resource.Event, error) {
	if err := c.view.ready(); err != nil {
		return nil, err
	}
	sent := map[string]bool{}
	if since == "" {
		for _, e := range c.eventsSince("") {
			sent[e.ID] = true
		}
	} else {
		for _, e := range c.eventsSince("") {
			sent[e.ID] = e.ID <= since
		}
	}
	out := make(chan resource.Event, 64)
	go func() {
		defer close(out)
		for {
			changed := c.view.change()
			now := map[string]bool{}
			for _, e := range c.eventsSince("") {
				now[e.ID] = true
				if sent[e.ID] {
					continue
				}
				select {
				case out <- e:
				case <-ctx.Done():
					return
				case <-c.ctx.Done():
					return
				}
			}
			sent = now
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-c.ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
