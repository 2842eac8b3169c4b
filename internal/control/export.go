package control

import (
	"context"
	"strings"

	"samovar/internal/block"
	"samovar/internal/volume"
)

// Open gives an export a device: it attaches the volume here if nobody has it or its holder is lost.
func (c *Control) Open(ctx context.Context, name string) (block.Device, error) {
	base, readOnly := strings.CutSuffix(name, readOnlySuffix)
	h, err := c.hold(ctx, base, modeAutomatic)
	if err != nil {
		return nil, err
	}
	return h.att.Device(readOnly, func() { c.leave(h) }), nil
}

// Info describes an export. It never attaches.
func (c *Control) Info(ctx context.Context, name string) (block.Info, error) {
	base, readOnly := strings.CutSuffix(name, readOnlySuffix)
	if id, ok := c.view.volumeID(base); ok {
		if cfg, ok := find[volume.Configuration](c.view, volumeKey(id)); ok {
			return block.Info{Name: name, Size: cfg.Size, ReadOnly: readOnly}, nil
		}
	}
	// This node's copy of the store may lag behind: the volume may be new.
	id, err := c.lookUp(ctx, base)
	if err != nil {
		return block.Info{}, err
	}
	cfg, err := records{c.opts.Store}.Look(ctx, id)
	if err != nil {
		return block.Info{}, err
	}
	return block.Info{Name: name, Size: cfg.Size, ReadOnly: readOnly}, nil
}

// List describes every export.
func (c *Control) List(context.Context) ([]block.Info, error) {
	if err := c.view.ready(); err != nil {
		return nil, err
	}
	var out []block.Info
	each(c.view, "volumes/", func(_ string, cfg volume.Configuration) {
		out = append(out, block.Info{Name: cfg.Name, Size: cfg.Size})
	})
	return out, nil
}
