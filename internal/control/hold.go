package control

import (
	"context"
	"sync"
	"time"

	"samovar/internal/driver/enginehost"
	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// held is a volume that is attached on this node. Control.mu guards its fields below users.
//
//	opening ──begin──> held ──release, detach, end of its engine──> leaving ──engine has ended──> gone
type held struct {
	id     volume.ID
	name   string
	att    *enginehost.Attachment
	began  time.Time
	sentAt uint64        // node's counters when it was attached
	gone   chan struct{} // closed when it is no longer held

	mode string
	// takeover: a client came here after the holder was lost. What a person attached there goes on here.
	takeover bool
	users    int         // openings by exports, comparisons, and those who wait for it
	idle     *time.Timer // automatic: detaches when it fires
	leaving  bool
	copied   progressMeter
}

// leastIdle keeps a timer without delay from running in circles.
const leastIdle = 50 * time.Millisecond

// hold makes sure that a volume is attached here, waits until it serves, and counts the caller as a user, who must
// call leave.
func (c *Control) hold(ctx context.Context, name, mode string) (*held, error) {
	for {
		id, err := c.holdable(ctx, name)
		if err != nil {
			return nil, err
		}
		h, wait := c.holding(id, mode)
		if h == nil && wait == nil {
			if h, err = c.begin(ctx, id, mode); err != nil {
				return nil, err
			}
		}
		if h != nil {
			if err := h.att.Serving(ctx); err != nil {
				c.leave(h)
				if fault.Is(err, fault.Busy) {
					if record, look := (records{c.opts.Store}).Look(ctx, id); look == nil && record.Holder != "" {
						err = c.busy(record)
					}
				}
				return nil, err
			}
			c.takenOver(ctx, h)
			return h, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fault.New(fault.Unavailable, "attach volume "+name, "it is being attached or detached on this node; try again")
		}
	}
}

// holdable finds a volume by name: one that is attached here without asking the cluster store, which may be away.
func (c *Control) holdable(ctx context.Context, name string) (volume.ID, error) {
	if id, ok := c.view.volumeID(name); ok {
		c.mu.Lock()
		h := c.held[id]
		here := h != nil && !h.leaving
		c.mu.Unlock()
		if here {
			return id, nil
		}
	}
	return c.lookUp(ctx, name)
}

// holding finds a volume that is attached here and makes the caller its user. If it is on its way in or out, wait
// tells when to look again; with neither, the caller must call begin.
func (c *Control) holding(id volume.ID, mode string) (h *held, wait <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch := c.opening[id]; ch != nil {
		return nil, ch
	}
	h = c.held[id]
	switch {
	case h == nil:
		c.opening[id] = make(chan struct{})
		return nil, nil
	case h.leaving:
		return nil, h.gone
	case mode == modeExplicit, h.mode == modeRecovery && mode == modeAutomatic:
		h.mode = mode // a recovery becomes what is wanted: it is attached already
	}
	h.users++
	h.stopIdle()
	return h, nil
}

// takenOver notes, once, that an explicit attachment goes on here.
func (c *Control) takenOver(ctx context.Context, h *held) {
	c.mu.Lock()
	takeover := h.takeover
	h.takeover = false
	c.mu.Unlock()
	if !takeover {
		return
	}
	err := c.want(ctx, h.id, func(w *wantRecord) { w.Attach = c.opts.Node })
	if err != nil {
		// It is served all the same; only a restart of this node will not bring it back by itself.
		c.event("volume "+h.name, "takeover-not-noted", "warning", err.Error())
	}
}

func (h *held) stopIdle() {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
}

// begin starts an attachment, after holding said that there is none. The caller is its first user.
func (c *Control) begin(ctx context.Context, id volume.ID, mode string) (*held, error) {
	record, err := c.claimable(ctx, id, mode)
	takeover := err == nil && mode == modeAutomatic && record.Mode == modeExplicit &&
		record.Engine != (volume.EngineID{}) && record.Holder != c.opts.Node
	if takeover {
		mode = modeExplicit
	}
	var h *held
	if err == nil {
		h = &held{
			id: id, name: record.Name, mode: mode, began: time.Now(), sentAt: c.opts.Counters.Sent.Load(),
			gone: make(chan struct{}), users: 1, takeover: takeover, att: c.startEngine(record, mode),
		}
	}
	c.mu.Lock()
	close(c.opening[id])
	delete(c.opening, id)
	ending := c.ending
	if h != nil && !ending {
		c.held[id] = h
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if ending {
		h.att.Abort()
		return nil, fault.New(fault.Shutdown, "attach volume "+record.Name, "node "+c.opts.Node+" ends")
	}
	c.tasks.Go(func() { c.attend(h) })
	c.changed()
	return h, nil
}

// leave ends one use of h.
func (c *Control) leave(h *held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.users--
	if h.users == 0 && h.mode == modeAutomatic && !h.leaving {
		c.armIdle(h, c.opts.IdleDetach)
	}
}

// armIdle detaches an automatic attachment after a while without users. The caller holds mu.
func (c *Control) armIdle(h *held, after time.Duration) {
	h.stopIdle()
	h.idle = time.AfterFunc(max(after, leastIdle), func() {
		if trouble, _ := c.view.state(); trouble != "" {
			// Detaching needs the cluster store; until it answers, clients that come back find the volume here.
			c.mu.Lock()
			if h.unused(modeAutomatic) {
				c.armIdle(h, max(c.opts.IdleDetach, time.Second))
			}
			c.mu.Unlock()
			return
		}
		c.releaseUnused(h, modeAutomatic)
	})
}

// unused tells whether nobody needs h, which was attached in a mode. The caller holds mu.
func (h *held) unused(mode string) bool { return h.users == 0 && h.mode == mode && !h.leaving }

// releaseUnused detaches a volume from this node if nobody needs it, in its own time.
func (c *Control) releaseUnused(h *held, mode string) {
	c.mu.Lock()
	if !h.unused(mode) {
		c.mu.Unlock()
		return
	}
	h.leaving = true
	h.stopIdle()
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	if err := h.att.Detach(ctx); err != nil && c.ctx.Err() == nil {
		c.event("volume "+h.name, "detach-slow", "warning", err.Error())
	}
}

// claimable reads a volume's record and refuses if somebody else holds it.
func (c *Control) claimable(ctx context.Context, id volume.ID, mode string) (volume.Configuration, error) {
	if err := c.registered(ctx); err != nil {
		return volume.Configuration{}, err
	}
	for {
		record, err := records{c.opts.Store}.Look(ctx, id)
		if err != nil {
			return record, err
		}
		if err := record.Validate(); err != nil {
			return record, err
		}
		if record.Engine == (volume.EngineID{}) || record.Holder == c.opts.Node {
			return record, nil
		}
		_, err = c.opts.Store.Get(ctx, "nodes/"+record.Holder)
		if fault.Is(err, fault.NotFound) {
			return record, nil // its holder is lost
		}
		if err != nil {
			return record, err
		}
		if record.Mode != modeRecovery || mode == modeRecovery {
			return record, c.busy(record)
		}
		_, err = call[struct{}](ctx, c, record.Holder, "detach", attachRequest{Name: record.Name, Recovery: true})
		switch {
		case fault.Is(err, fault.NotFound):
			return record, nil // nobody runs it there any more, and its record was left behind
		case fault.Is(err, fault.Busy):
			return record, c.busy(record)
		case err != nil:
			return record, err
		}
		if !pause(ctx, 20*time.Millisecond) {
			return record, fault.New(fault.Unavailable, "attach volume "+record.Name, "node "+record.Holder+" is still recovering it")
		}
	}
}

func (c *Control) busy(record volume.Configuration) error {
	return fault.New(fault.Busy, "attach volume "+record.Name, "held by node "+record.Holder+
		" (use it there, or: samovar volume detach "+record.Name+")")
}

// attend waits for the end of an attachment.
func (c *Control) attend(h *held) {
	<-h.att.Ended()
	c.mu.Lock()
	h.leaving = true
	h.stopIdle()
	if c.held[h.id] == h {
		delete(c.held, h.id)
	}
	c.mu.Unlock()
	close(h.gone)
	if s := h.att.Status(); s.Phase == engine.Ended && s.Reason == fault.None {
		c.event("volume "+h.name, "detached", "info", "detached from node "+c.opts.Node)
	}
	c.changed()
}

// detachAll detaches everything from this node, all at once, for its end.
func (c *Control) detachAll(ctx context.Context) {
	c.mu.Lock()
	c.ending = true
	var all []*held
	for _, h := range c.held {
		h.leaving = true
		h.stopIdle()
		all = append(all, h)
	}
	c.mu.Unlock()
	var leaving sync.WaitGroup
	for _, h := range all {
		leaving.Go(func() {
			if err := h.att.Detach(ctx); err != nil {
				c.opts.Logger.Warn("not detached in time; the next attachment makes the copies equal", "volume", h.name, "error", err)
				h.att.Abort()
			}
		})
	}
	leaving.Wait()
}
