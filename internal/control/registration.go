package control

import (
	"context"
	"encoding/hex"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// stayRegistered keeps this node's lease, and the claims of its pools under it, until ctx ends. While the cluster
// store is away replicas go on: claims only keep a second process from opening a pool.
func (c *Control) stayRegistered(ctx context.Context) {
	told := ""
	for ctx.Err() == nil {
		s, err := c.register(ctx)
		if err != nil {
			if !fault.Is(err, fault.Unavailable) && err.Error() != told && ctx.Err() == nil {
				told = err.Error()
				c.opts.Logger.Warn("this node is not part of the cluster", "error", err)
			}
			if !pause(ctx, 500*time.Millisecond) {
				return
			}
			continue
		}
		told = ""
		c.setSession(s)
		c.changed()
		c.lookSoon()
		select {
		case <-s.Lost():
		case <-ctx.Done():
			return
		}
		s.Abandon()
		if !c.setSession(nil) {
			return
		}
		c.opts.Logger.Warn("this node's lease in the cluster store was lost; it is taken again as soon as a majority answers")
	}
}

// setSession remembers the node's lease; false if the node ends.
func (c *Control) setSession(s kv.Session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = s
	return !c.ending
}

// registered waits a while for this node's lease: without it nobody would know that what it attaches is in use, and
// another process may run under its name.
func (c *Control) registered(ctx context.Context) error {
	until := time.Now().Add(2 * c.leaseTime())
	for {
		c.mu.Lock()
		s := c.session
		c.mu.Unlock()
		if s != nil {
			return nil
		}
		if time.Now().After(until) || !pause(ctx, 50*time.Millisecond) {
			return fault.New(fault.Unavailable, "use node "+c.opts.Node,
				"it has no lease in the cluster store: a majority does not answer, or another process runs under this name (samovar status)")
		}
	}
}

func (c *Control) leaseTime() time.Duration { return max(c.opts.PingTimeout, 3*time.Second) }

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// register takes a lease for this node. A node of the same name that runs elsewhere is refused, and nothing that it
// has written is touched.
func (c *Control) register(ctx context.Context) (kv.Session, error) {
	o, op := c.opts, "register node "+c.opts.Node
	if err := c.sameCluster(ctx, op); err != nil {
		return nil, err
	}
	condition := kv.Condition{Key: "nodes/" + o.Node}
	switch r, err := o.Store.Get(ctx, condition.Key); {
	case err == nil:
		var other nodeRecord
		if decode(r.Key, r.Value, &other) == nil && other.Run != c.run {
			// Until its lease runs out: this node may have been restarted. Longer: a second process.
			return nil, fault.New(fault.Busy, op, "another process is registered under this name, started "+
				other.Started.Format(time.RFC3339)+"; if that is not this node's last run, give one of them another name")
		}
		condition.ModRevision = r.ModRevision
	case !fault.Is(err, fault.NotFound):
		return nil, err
	}
	s, err := o.Store.Grant(ctx, c.leaseTime())
	if err != nil {
		return nil, err
	}
	member := memberRecord{API: o.API, Data: o.Data, NBD: o.NBD, Socket: o.Socket, Witness: o.Witness, Member: o.Member}
	node := nodeRecord{Run: c.run, Started: c.start, Version: o.Version.Version}
	out := o.Store.Txn(ctx, []kv.Condition{condition}, []kv.Change{
		{Key: condition.Key, Value: encode(node), Lease: s.Lease()}, {Key: "members/" + o.Node, Value: encode(member)},
	})
	if out.Verdict != kv.Applied {
		s.Abandon()
		return nil, out.Err
	}
	return s, nil
}

// sameCluster refuses a cluster store that is not the one of this node's directory.
func (c *Control) sameCluster(ctx context.Context, op string) error {
	r, err := c.opts.Store.Get(ctx, "cluster")
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	id := hex.EncodeToString(c.opts.Cluster[:])
	var there struct {
		ID string `json:"id"`
	}
	switch {
	case err != nil:
		return fault.New(fault.Foreign, op, "the cluster store is empty, and this node belongs to cluster "+id+"; check its endpoints, or restore the store from a copy")
	case decode(r.Key, r.Value, &there) != nil || there.ID != id:
		return fault.New(fault.Foreign, op, "the cluster store is that of cluster "+there.ID+", this node belongs to cluster "+id+"; check its endpoints")
	}
	return nil
}

// unregister gives this node's lease back.
func (c *Control) unregister(ctx context.Context) {
	c.mu.Lock()
	s := c.session
	c.session, c.ending = nil, true
	c.mu.Unlock()
	if s != nil {
		if err := s.Close(ctx); err != nil {
			c.opts.Logger.Debug("the lease runs out by itself", "error", err)
		}
	}
}

// lookSoon makes keepPools look at once.
func (c *Control) lookSoon() {
	select {
	case c.look <- struct{}{}:
	default:
	}
}
