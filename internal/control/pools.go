package control

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"samovar/internal/driver/replicahost"
	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
	"samovar/internal/resource"
	"samovar/internal/store"
	"samovar/internal/volume"
)

// localPool is a pool of this node. Control.mu guards its fields below record.
type localPool struct {
	record poolRecord
	pool   *store.Pool          // nil while it is not open
	cause  string               // why not
	lease  kv.LeaseID           // under which it is claimed
	told   map[volume.ID]string // replicas that could not be deleted, and why
}

// opened gives an open pool of this node; nil if it is not open.
func (c *Control) opened(id volume.PoolID) *store.Pool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lp := c.pools[id]; lp != nil {
		return lp.pool
	}
	return nil
}

// keepPools opens this node's pools and runs their replicas, and goes on trying for those that cannot be opened. It
// is the only one who does.
func (c *Control) keepPools(ctx context.Context) {
	for {
		changed := c.view.change()
		c.lookAtPools(ctx)
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if !pause(ctx, 200*time.Millisecond) { // several changes at once
				return
			}
		case <-c.look:
		case <-time.After(2 * time.Second):
		}
	}
}

func (c *Control) lookAtPools(ctx context.Context) {
	c.mu.Lock()
	session := c.session
	c.mu.Unlock()
	each(c.view, "pools/", func(_ string, p poolRecord) {
		if p.Node == c.opts.Node {
			c.keepPool(ctx, p, session)
		}
	})
}

// keepPool opens one pool if it is not open, and claims it under the present lease.
func (c *Control) keepPool(ctx context.Context, p poolRecord, session kv.Session) {
	c.mu.Lock()
	lp := c.pools[p.ID]
	if lp == nil {
		lp = &localPool{record: p, cause: "being opened", told: map[volume.ID]string{}}
		c.pools[p.ID] = lp
	}
	open, lease := lp.pool != nil, lp.lease
	c.mu.Unlock()
	if session != nil && lease != session.Lease() {
		err := c.claimPool(ctx, p, session)
		switch {
		case err == nil:
			c.mu.Lock()
			lp.lease = session.Lease()
			lease = lp.lease
			c.mu.Unlock()
		case open && !fault.Is(err, fault.Busy): // nobody else has it: it is served on, and claimed in a moment
		default:
			if open {
				c.event("pool "+p.Name, "pool-claimed", "error", err.Error())
				c.host.RemovePool(p.ID)
				c.closePool(lp)
			}
			c.poolTrouble(lp, err)
			return
		}
	}
	if !open {
		if lease == 0 {
			return // not before it is claimed (rule 15)
		}
		if err := c.openPool(lp); err != nil {
			c.poolTrouble(lp, err)
			return
		}
	}
	c.runReplicas(lp)
}

func (c *Control) claimPool(ctx context.Context, p poolRecord, s kv.Session) error {
	key := "claims/" + p.ID.String()
	value := encode(claimRecord{Node: c.opts.Node, Run: c.run})
	out := c.opts.Store.CompareAndSwap(ctx, key, 0, value, s.Lease())
	if out.Verdict != kv.Conflict || len(out.Current) == 0 {
		return out.Err
	}
	var other claimRecord
	if err := decode(key, out.Current[0].Value, &other); err != nil {
		return err
	}
	if other.Run != c.run {
		return fault.New(fault.Busy, "claim pool "+p.Name, "another process, on node "+other.Node+", has a pool with this id open: two directories are copies of each other, or this node was restarted a moment ago")
	}
	return c.opts.Store.CompareAndSwap(ctx, key, out.Current[0].ModRevision, value, s.Lease()).Err
}

// poolTrouble remembers why a pool is not served, and tells of it once.
func (c *Control) poolTrouble(lp *localPool, err error) {
	c.mu.Lock()
	was := lp.cause
	lp.cause = err.Error()
	c.mu.Unlock()
	if was != err.Error() && !fault.Is(err, fault.Unavailable) {
		c.event("pool "+lp.record.Name, "pool-offline", "error", err.Error())
	}
	c.changed()
}

func (c *Control) openPool(lp *localPool) error {
	pool, err := store.OpenPool(c.opts.StoreFiles, lp.record.Dir, c.storeOptions())
	if err != nil {
		return err
	}
	if id := pool.Identity().Pool; id != lp.record.ID {
		text := "the directory holds another pool, " + id.String()
		return errors.Join(fault.New(fault.Foreign, "open pool "+lp.record.Name+" in "+lp.record.Dir, text), pool.Close())
	}
	c.mu.Lock()
	lp.pool, lp.cause = pool, ""
	c.mu.Unlock()
	c.event("pool "+lp.record.Name, "pool-online", "info", "opened in "+lp.record.Dir)
	c.changed()
	c.purge(lp, pool)
	return nil
}

// purge finishes deletions that an earlier process began.
func (c *Control) purge(lp *localPool, pool *store.Pool) {
	info, err := pool.Info()
	if err != nil {
		c.poolTrouble(lp, err)
		return
	}
	for _, l := range info.Leftovers {
		if l.Kind != store.Tombstone || !c.deleted(l.Volume) {
			continue
		}
		if err := pool.Purge(l.Name); err != nil {
			c.event("pool "+lp.record.Name, "delete-failed", "warning", err.Error())
		}
	}
}

// deleted tells whether a volume was deleted, as far as this node knows.
func (c *Control) deleted(id volume.ID) bool {
	_, deleted := c.view.get(deletedKey(id))
	return deleted
}

// runReplicas runs every replica in a pool that is not running, and lets go of those whose volume was deleted.
func (c *Control) runReplicas(lp *localPool) {
	pool := c.opened(lp.record.ID)
	if pool == nil {
		return
	}
	ids, err := pool.Replicas()
	if err != nil {
		c.poolTrouble(lp, err)
		return
	}
	c.mu.Lock()
	lp.cause = ""
	c.mu.Unlock()
	for _, id := range ids {
		k := replicahost.Key{Volume: id, Pool: lp.record.ID}
		if c.deleted(id) {
			c.finishDelete(lp, k)
			continue
		}
		if c.host.Has(k) {
			continue
		}
		before := c.host.Fault(k)
		err := c.host.Add(pool, id)
		if err != nil && !fault.Is(err, fault.NotFound) && (before == nil || before.Error() != err.Error()) {
			c.event("volume "+c.view.volumeName(id), "replica-damaged", "error",
				"its replica on pool "+lp.record.Name+" cannot be used: "+err.Error())
			c.changed()
		}
	}
}

// finishDelete deletes a replica whose volume is gone, and tells of a failure once.
func (c *Control) finishDelete(lp *localPool, k replicahost.Key) {
	text := ""
	if err := c.deleteReplica(k); err != nil && !fault.Is(err, fault.NotFound) {
		text = err.Error()
	}
	c.mu.Lock()
	tell := text != "" && lp.told[k.Volume] != text
	lp.told[k.Volume] = text
	if text == "" {
		delete(lp.told, k.Volume)
	}
	c.mu.Unlock()
	if tell {
		c.event("pool "+lp.record.Name, "delete-failed", "warning", text)
	}
}

// deleteReplica turns a replica of a deleted volume into a tombstone and gives its space back.
func (c *Control) deleteReplica(k replicahost.Key) error {
	pool := c.opened(k.Pool)
	if pool == nil {
		return fault.New(fault.Unavailable, "delete replica of volume "+k.Volume.String(), "pool "+k.Pool.String()+" is not open on node "+c.opts.Node)
	}
	return c.host.Remove(k, func() error {
		name, err := pool.DeleteReplica(k.Volume)
		if err != nil {
			return err
		}
		return pool.Purge(name)
	})
}

func (c *Control) closePool(lp *localPool) {
	c.mu.Lock()
	pool := lp.pool
	lp.pool, lp.lease = nil, 0
	c.mu.Unlock()
	if pool == nil {
		return
	}
	if err := pool.Close(); err != nil {
		c.opts.Logger.Warn("closing a pool", "pool", lp.record.Name, "error", err)
	}
}

func (c *Control) closePools() {
	c.mu.Lock()
	var all []*localPool
	for _, lp := range c.pools {
		all = append(all, lp)
	}
	c.mu.Unlock()
	for _, lp := range all {
		c.closePool(lp)
	}
}

// CreatePool makes a pool on the node that the request names.
func (c *Control) CreatePool(ctx context.Context, q resource.NewPool) (resource.Pool, error) {
	if err := c.view.ready(); err != nil {
		return resource.Pool{}, err
	}
	if q.Node == "" {
		q.Node = c.opts.Node
	}
	if q.Node != c.opts.Node {
		p, err := call[resource.Pool](ctx, c, q.Node, "create-pool", q)
		if err != nil {
			return p, err
		}
		return c.awaitSeen(ctx, p)
	}
	op := "create pool " + q.Name
	if c.opts.Witness {
		return resource.Pool{}, fault.New(fault.Invalid, op, "node "+q.Node+" is a witness: it has no pools")
	}
	dir, err := filepath.Abs(q.Dir)
	if err != nil || q.Dir != dir {
		return resource.Pool{}, fault.New(fault.Invalid, op, "the directory must be an absolute path; got "+q.Dir)
	}
	taken := fault.New(fault.Exists, op, "there is a pool of this name (samovar pool list)")
	switch _, err := c.opts.Store.Get(ctx, "poolnames/"+q.Name); {
	case err == nil:
		return resource.Pool{}, taken
	case !fault.Is(err, fault.NotFound):
		return resource.Pool{}, err // before anything is written to the directory
	}
	p := poolRecord{Name: q.Name, Node: q.Node, Dir: dir}
	if p.ID, err = c.preparePool(ctx, p); err != nil {
		return resource.Pool{}, err
	}
	out := c.opts.Store.Txn(ctx, []kv.Condition{{Key: "poolnames/" + p.Name}, {Key: poolKey(p.ID)}}, []kv.Change{
		{Key: "poolnames/" + p.Name, Value: []byte(p.ID.String())},
		{Key: poolKey(p.ID), Value: encode(p)},
	})
	if out.Verdict == kv.Conflict {
		return resource.Pool{}, taken
	}
	if out.Verdict != kv.Applied {
		if r, err := c.opts.Store.Get(ctx, "poolnames/"+p.Name); err != nil || string(r.Value) != p.ID.String() {
			return resource.Pool{}, &fault.Error{Kind: fault.KindOf(out.Err), Op: op,
				Text: "the directory " + dir + " is prepared, but perhaps not entered into the cluster; the same command again goes on", Err: out.Err}
		}
	}
	c.event("pool "+p.Name, "pool-created", "info", "on node "+p.Node+" in "+dir)
	return c.awaitPool(ctx, p)
}

// preparePool makes the directory a pool. One that an earlier try with the same name prepared is taken as it is,
// unless the cluster knows it.
func (c *Control) preparePool(ctx context.Context, p poolRecord) (volume.PoolID, error) {
	id := volume.PoolID(randomID())
	made := store.CreatePool(c.opts.StoreFiles, p.Dir, store.Identity{Pool: id, Cluster: c.opts.Cluster, Name: p.Name}, time.Now())
	if !fault.Is(made, fault.Exists) {
		return id, made
	}
	found, _, err := store.ReadIdentity(c.opts.StoreFiles, p.Dir)
	if err != nil || found.Cluster != c.opts.Cluster || found.Name != p.Name {
		return id, made
	}
	_, err = c.opts.Store.Get(ctx, poolKey(found.Pool))
	if !fault.Is(err, fault.NotFound) {
		return id, made
	}
	return found.Pool, nil
}

// awaitSeen waits until this node, too, sees a new pool online, so that it can be used from here at once.
func (c *Control) awaitSeen(ctx context.Context, p resource.Pool) (resource.Pool, error) {
	for {
		changed := c.view.change()
		if seen, err := c.Pool(ctx, p.Name); err == nil && seen.Online {
			return seen, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p, nil // it is there, only not seen from here yet
		}
	}
}

// awaitPool waits until a new pool is served.
func (c *Control) awaitPool(ctx context.Context, p poolRecord) (resource.Pool, error) {
	for {
		changed := c.view.change()
		c.lookSoon()
		c.mu.Lock()
		open, cause := false, "this node has not seen it yet"
		if lp := c.pools[p.ID]; lp != nil {
			open, cause = lp.pool != nil, lp.cause
		}
		c.mu.Unlock()
		if open {
			if _, known := c.view.pool(p.ID); known {
				return c.awaitSeen(ctx, resource.Pool{ID: p.ID.String(), Name: p.Name, Node: p.Node, Dir: p.Dir})
			}
		}
		select {
		case <-changed:
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return resource.Pool{}, fault.New(fault.Unavailable, "create pool "+p.Name, "created, but not served yet: "+cause)
		}
	}
}
