package control

import (
	"context"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// takeOverPaces is how many paces a lost holder's volume is left to clients that come back, before the cluster makes
// its copies equal by itself.
const takeOverPaces = 5

// recoverVolumes looks after volumes that nobody has attached: those whose engine is lost are made consistent, those
// that lack copies get them, and explicit attachments of this node come back after a restart. Recovery runs as an
// engine too (rule 9), and gives way to anybody who wants the volume.
func (c *Control) recoverVolumes(ctx context.Context) {
	for pause(ctx, c.opts.RecoveryPace) {
		if c.view.ready() != nil {
			continue
		}
		c.noteOnline()
		each(c.view, "volumes/", func(_ string, cfg volume.Configuration) {
			if c.mine(cfg) && c.beginTry(cfg.Volume) {
				c.tasks.Go(func() { c.endTry(cfg, c.recoverVolume(ctx, cfg)) })
			}
		})
		c.endRecoveries()
	}
}

func (c *Control) noteOnline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.view.list("members/") {
		name := r.Key[len("members/"):]
		if _, seen := c.lastSeen[name]; !seen || c.view.online(name) {
			c.lastSeen[name] = time.Now()
		}
	}
}

// mine tells whether this node should look after a volume now.
func (c *Control) mine(cfg volume.Configuration) bool {
	c.mu.Lock()
	_, here := c.held[cfg.Volume]
	_, opening := c.opening[cfg.Volume]
	lost := time.Since(c.lastSeen[cfg.Holder]) > takeOverPaces*c.opts.RecoveryPace
	ending := c.ending
	c.mu.Unlock()
	if here || opening || ending || cfg.Validate() != nil {
		return false
	}
	attached := cfg.Engine != (volume.EngineID{})
	switch {
	case !attached && c.wantedHere(cfg.Volume):
		return true // this node was ended in order, which detached it
	case attached && cfg.Holder == c.opts.Node:
		return true // this process does not run it: its engine died with the last one
	case attached && (c.view.online(cfg.Holder) || !lost):
		return false
	}
	first, useful := "", attached
	for _, m := range members(cfg) {
		p, ok := c.view.pool(m.Pool)
		online := ok && c.view.online(p.Node)
		switch {
		case m.InSync && online && (first == "" || p.Node < first):
			first = p.Node
		case m.InSync && !online:
			return false // its return may bring more than what is here
		case !m.InSync && online:
			useful = true
		}
	}
	return useful && first == c.opts.Node
}

// wantedHere tells whether a person attached a volume on this node and did not detach it.
func (c *Control) wantedHere(id volume.ID) bool {
	w, ok := find[wantRecord](c.view, wantKey(id))
	return ok && w.Attach == c.opts.Node
}

// try is how recovering one volume went. Control.mu guards it.
type try struct {
	running  bool
	failures int
	notUntil time.Time
	failure  string // the last one that was told
}

// beginTry tells whether a volume may be tried now: one try at a time, and after failures not at once.
func (c *Control) beginTry(id volume.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tries[id]
	if t == nil {
		t = &try{}
		c.tries[id] = t
	}
	if t.running || time.Now().Before(t.notUntil) {
		return false
	}
	t.running = true
	return true
}

// endTry tells of a failure once.
func (c *Control) endTry(cfg volume.Configuration, err error) {
	c.mu.Lock()
	t := c.tries[cfg.Volume]
	t.running = false
	if err == nil {
		delete(c.tries, cfg.Volume)
		c.mu.Unlock()
		return
	}
	t.notUntil = time.Now().Add(time.Second << min(t.failures, 6))
	t.failures++
	tell := t.failure != err.Error()
	switch fault.KindOf(err) {
	case fault.Busy, fault.Aborted, fault.Shutdown: // somebody else has it, or wanted it, or the node ends
		tell = false
	}
	if tell {
		t.failure = err.Error()
	}
	c.mu.Unlock()
	if tell {
		c.event("volume "+cfg.Name, "recovery-failed", "warning", err.Error())
	}
}

func (c *Control) recoverVolume(ctx context.Context, cfg volume.Configuration) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	mode := modeRecovery
	if c.wantedHere(cfg.Volume) && (cfg.Engine == (volume.EngineID{}) || cfg.Holder == c.opts.Node) {
		mode = modeExplicit
		r, err := c.opts.Store.Get(ctx, wantKey(cfg.Volume)) // the view may lag behind a detach
		var w wantRecord
		if err != nil || decode(r.Key, r.Value, &w) != nil || w.Attach != c.opts.Node {
			return err
		}
	}
	if cfg.Engine != (volume.EngineID{}) && cfg.Holder != c.opts.Node && c.stillRuns(ctx, cfg) {
		return nil
	}
	h, err := c.hold(ctx, cfg.Name, mode)
	if err != nil {
		return err
	}
	c.leave(h)
	return nil
}

// stillRuns asks a holder that lost its lease whether it serves the volume: cut off from the cluster store alone, it
// may serve its clients well, and nobody has asked for the volume elsewhere.
func (c *Control) stillRuns(ctx context.Context, cfg volume.Configuration) bool {
	m, ok := find[memberRecord](c.view, "members/"+cfg.Holder)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	body, err := c.opts.Peers.Call(ctx, m.API, "runs", encode(attachRequest{Name: cfg.Name}))
	var runs bool
	return err == nil && decode("the answer of node "+cfg.Holder, body, &runs) == nil && runs
}

// runsHere tells whether a volume is served by this node.
func (c *Control) runsHere(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		if h.name == name && !h.leaving {
			return h.att.Status().Phase == engine.Serving
		}
	}
	return false
}

// endRecoveries detaches what was attached for recovery and has nothing more to do here.
func (c *Control) endRecoveries() {
	c.mu.Lock()
	var all []*held
	for _, h := range c.held {
		if h.unused(modeRecovery) {
			all = append(all, h)
		}
	}
	c.mu.Unlock()
	for _, h := range all {
		s := h.att.Status()
		if s.Phase.String() != "serving" || s.Doubtful > 0 {
			continue
		}
		todo := false
		for _, m := range s.Members {
			p, ok := c.view.pool(m.Pool)
			todo = todo || !m.InSync && ok && c.view.online(p.Node)
		}
		if !todo || time.Since(h.began) > time.Hour {
			c.tasks.Go(func() { c.releaseUnused(h, modeRecovery) })
		}
	}
}
