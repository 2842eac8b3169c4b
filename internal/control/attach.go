package control

import (
	"context"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
	"samovar/internal/resource"
	"samovar/internal/volume"
)

// Modes of an attachment, as they stand in the record.
const (
	modeExplicit  = "explicit"  // by a person; ends by detach
	modeAutomatic = "automatic" // by a client of an export; ends after its last session
	modeRecovery  = "recovery"  // by the cluster itself, without a device; gives way to the others
)

const readOnlySuffix = "@ro"

type attachRequest struct {
	Name     string `json:"name"`
	Recovery bool   `json:"recovery,omitempty"` // detach only if it is attached for recovery
}

// Attach attaches a volume on the node that the request names, explicitly.
func (c *Control) Attach(ctx context.Context, name string, q resource.Attach) (resource.Attachment, error) {
	if q.Node == "" {
		q.Node = c.opts.Node
		if id, err := c.lookUp(ctx, name); err == nil {
			q.Node = c.attachNode(id)
		}
	}
	return call[resource.Attachment](ctx, c, q.Node, "attach", attachRequest{Name: name})
}

// attachNode is where a volume is attached if nobody says where: where it is, else where a copy is, else here.
func (c *Control) attachNode(id volume.ID) string {
	cfg, ok := find[volume.Configuration](c.view, volumeKey(id))
	if !ok {
		return c.opts.Node
	}
	if cfg.Engine != (volume.EngineID{}) && c.view.online(cfg.Holder) && cfg.Mode != modeRecovery {
		return cfg.Holder
	}
	first := ""
	for _, m := range members(cfg) {
		p, _ := c.view.pool(m.Pool)
		if p.Node == c.opts.Node {
			return p.Node
		}
		if first == "" && m.InSync && c.view.online(p.Node) {
			first = p.Node
		}
	}
	if first != "" {
		return first
	}
	return c.opts.Node
}

// attachHere attaches explicitly on this node.
func (c *Control) attachHere(ctx context.Context, name string) (resource.Attachment, error) {
	h, err := c.hold(ctx, name, modeExplicit)
	if err != nil {
		return resource.Attachment{}, err
	}
	defer c.leave(h)
	if err := c.want(ctx, h.id, func(w *wantRecord) { w.Attach = c.opts.Node }); err != nil {
		return resource.Attachment{}, err
	}
	return *addressOf(name, c.opts.Node, c.opts.NBD, c.opts.Socket), nil
}

// Detach ends an explicit or other attachment, wherever it is.
func (c *Control) Detach(ctx context.Context, name string) error {
	id, err := c.lookUp(ctx, name)
	if err != nil {
		return err
	}
	if err := c.want(ctx, id, func(w *wantRecord) { w.Attach = "" }); err != nil {
		return err
	}
	record, err := records{c.opts.Store}.Look(ctx, id)
	if err != nil {
		return err
	}
	if record.Engine == (volume.EngineID{}) {
		return nil
	}
	if !c.view.online(record.Holder) {
		return fault.New(fault.Unavailable, "detach volume "+name, "its holder, node "+record.Holder+
			", is not online; attach it elsewhere, which takes it over")
	}
	_, err = call[struct{}](ctx, c, record.Holder, "detach", attachRequest{Name: name})
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// detachHere detaches from this node and waits for it.
func (c *Control) detachHere(ctx context.Context, name string, recoveryOnly bool) error {
	id, err := c.lookUp(ctx, name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	h := c.held[id]
	refusal := c.detachable(h, name, recoveryOnly)
	if refusal == nil {
		h.leaving = true
		h.stopIdle()
	}
	c.mu.Unlock()
	if refusal != nil {
		return refusal
	}
	return h.att.Detach(ctx)
}

// detachable says why h is not to be detached. The caller holds mu.
func (c *Control) detachable(h *held, name string, recoveryOnly bool) error {
	op := "detach volume " + name
	switch {
	case h == nil:
		return fault.New(fault.NotFound, op, "it is not attached on node "+c.opts.Node)
	case h.leaving:
		return nil
	case recoveryOnly && h.mode != modeRecovery:
		return fault.New(fault.Busy, op, "it is in use on node "+c.opts.Node)
	case h.users > 0 && h.mode != modeRecovery:
		return fault.New(fault.Busy, op, "clients use it on node "+c.opts.Node+": end their sessions first")
	}
	return nil // a comparison gives way, as a recovery does
}

// want changes what people want of a volume.
func (c *Control) want(ctx context.Context, id volume.ID, change func(*wantRecord)) error {
	for {
		r, err := c.opts.Store.Get(ctx, wantKey(id))
		if err != nil {
			return err
		}
		var w wantRecord
		if err := decode(r.Key, r.Value, &w); err != nil {
			return err
		}
		change(&w)
		out := c.opts.Store.CompareAndSwap(ctx, r.Key, r.ModRevision, encode(w), 0)
		if out.Verdict != kv.Conflict {
			return out.Err
		}
	}
}
