package control

import (
	"context"
	"time"

	"samovar/internal/driver/link"
	"samovar/internal/driver/replicahost"
	"samovar/internal/fault"
	"samovar/internal/wire"
)

const (
	purposeEngine = wire.Engine
	purposeCopier = wire.Copier
)

// finder opens sessions to replicas: within the process for those of this node, else over TCP to the node that has
// the pool, as far as this node knows.
type finder struct {
	c       *Control
	purpose wire.Purpose
}

func (c *Control) finder(purpose wire.Purpose) finder { return finder{c, purpose} }

// Connect opens a session.
func (f finder) Connect(ctx context.Context, t link.Target, r link.Receiver) (link.Link, error) {
	k := replicahost.Key{Volume: t.Volume, Pool: t.Pool}
	if f.c.host.Has(k) {
		return link.Local(r, func(far link.Link) (link.Receiver, error) { return f.c.host.Accept(k, far) })
	}
	p, ok := f.c.view.pool(t.Pool)
	if !ok {
		return nil, notFound("pool", t.Pool.String())
	}
	if p.Node == f.c.opts.Node {
		return nil, fault.New(fault.Unavailable, "open a session to pool "+p.Name, "its replica does not run on this node now")
	}
	m, ok := find[memberRecord](f.c.view, "members/"+p.Node)
	if !ok {
		return nil, notFound("node", p.Node)
	}
	conn, err := link.Dial(ctx, f.c.linkOptions(), f.purpose, m.Data, t)
	if err != nil {
		return nil, err
	}
	conn.Run(r, nil)
	return conn, nil
}

func (c *Control) linkOptions() link.Options {
	return link.Options{
		Cluster: c.opts.Cluster, Buffers: c.opts.Buffers, Counters: c.opts.Counters,
		Handshake: min(c.opts.PingTimeout, 3*time.Second),
	}
}

// LinkOptions are those of this node's links, for the listener of replica sessions.
func (c *Control) LinkOptions() link.Options { return c.linkOptions() }
