package fake

import (
	"context"
	"fmt"
	"slices"

	"samovar/internal/fault"
	"samovar/internal/resource"
)

func find[T any](c *Cluster, call, object, name string, all *[]T, nameOf func(T) string) (none T, err error) {
	defer c.mu.Unlock()
	if err := c.begin(call); err != nil {
		return none, err
	}
	for _, one := range *all {
		if nameOf(one) == name {
			return one, nil
		}
	}
	return none, fault.New(fault.NotFound, object+" "+name, "no such "+object)
}

func all[T any](c *Cluster, call string, list *[]T) ([]T, error) {
	defer c.mu.Unlock()
	if err := c.begin(call); err != nil {
		return nil, err
	}
	return slices.Clone(*list), nil
}

func nodeName(n resource.Node) string     { return n.Name }
func poolName(p resource.Pool) string     { return p.Name }
func volumeName(v resource.Volume) string { return v.Name }

func (c *Cluster) Version(context.Context) (resource.Version, error) {
	defer c.mu.Unlock()
	err := c.begin("Version")
	return c.version, err
}

func (c *Cluster) Status(context.Context) (resource.Status, error) {
	defer c.mu.Unlock()
	err := c.begin("Status")
	return c.status, err
}

func (c *Cluster) Nodes(context.Context) ([]resource.Node, error) { return all(c, "Nodes", &c.nodes) }
func (c *Cluster) Pools(context.Context) ([]resource.Pool, error) { return all(c, "Pools", &c.pools) }
func (c *Cluster) Volumes(context.Context) ([]resource.Volume, error) {
	return all(c, "Volumes", &c.volumes)
}

func (c *Cluster) Node(_ context.Context, name string) (resource.Node, error) {
	return find(c, "Node", "node", name, &c.nodes, nodeName)
}

func (c *Cluster) Pool(_ context.Context, name string) (resource.Pool, error) {
	return find(c, "Pool", "pool", name, &c.pools, poolName)
}

func (c *Cluster) Volume(_ context.Context, name string) (resource.Volume, error) {
	return find(c, "Volume", "volume", name, &c.volumes, volumeName)
}

func (c *Cluster) CreatePool(_ context.Context, n resource.NewPool) (p resource.Pool, err error) {
	defer c.mu.Unlock()
	if err := c.begin("CreatePool", n.Node, " ", n.Dir, " ", n.Name); err != nil {
		return p, err
	}
	if slices.ContainsFunc(c.pools, func(p resource.Pool) bool { return p.Name == n.Name }) {
		return p, fault.New(fault.Exists, "pool "+n.Name, "the name is taken")
	}
	p = resource.Pool{ID: fmt.Sprintf("%032x", len(c.pools)+1), Name: n.Name, Node: n.Node, Dir: n.Dir, Online: true, Kind: "ext4",
		Total: 1 << 40, Free: 1 << 40, Direct: true}
	c.pools = append(c.pools, p)
	c.event("pool "+n.Name, "created", "on node "+n.Node, "info")
	return p, nil
}

func (c *Cluster) CreateVolume(_ context.Context, n resource.NewVolume) (v resource.Volume, err error) {
	defer c.mu.Unlock()
	if err := c.begin("CreateVolume", n.Name, " ", n.Size, " ", n.Copies, " ", n.ExtentSize, " ", n.Pools); err != nil {
		return v, err
	}
	if c.index(n.Name) >= 0 {
		return v, fault.New(fault.Exists, "volume "+n.Name, "the name is taken")
	}
	pools := n.Pools
	if len(pools) == 0 {
		for _, p := range c.pools[:min(n.Copies, len(c.pools))] {
			pools = append(pools, p.Name)
		}
	}
	if len(pools) < n.Copies {
		return v, fault.New(fault.NoSpace, "volume "+n.Name, fmt.Sprintf("%d replicas need %d nodes with a pool; there are %d", n.Copies, n.Copies, len(pools)))
	}
	v = volume(n.Name, n.Size, pools, c.pools)
	if n.ExtentSize != 0 {
		v.ExtentSize = n.ExtentSize
	}
	c.volumes = append(c.volumes, v)
	c.event("volume "+n.Name, "created", fmt.Sprintf("%d copies on %v", n.Copies, pools), "info")
	return v, nil
}

// index finds a volume, or gives -1; mu is held.
func (c *Cluster) index(name string) int {
	return slices.IndexFunc(c.volumes, func(v resource.Volume) bool { return v.Name == name })
}

func (c *Cluster) lookup(name string) (*resource.Volume, error) {
	if i := c.index(name); i >= 0 {
		return &c.volumes[i], nil
	}
	return nil, fault.New(fault.NotFound, "volume "+name, "no such volume")
}

func (c *Cluster) DeleteVolume(_ context.Context, name string) error {
	defer c.mu.Unlock()
	if err := c.begin("DeleteVolume", name); err != nil {
		return err
	}
	v, err := c.lookup(name)
	switch {
	case err != nil:
		return err
	case v.Attached:
		return fault.New(fault.Busy, "volume "+name, "held by node "+v.Holder)
	}
	c.volumes = slices.Delete(slices.Clone(c.volumes), c.index(name), c.index(name)+1)
	c.event("volume "+name, "deleted", "by request", "info")
	return nil
}

func (c *Cluster) Attach(_ context.Context, name string, a resource.Attach) (none resource.Attachment, err error) {
	defer c.mu.Unlock()
	if err := c.begin("Attach", name, " ", a.Node); err != nil {
		return none, err
	}
	v, err := c.lookup(name)
	node := a.Node
	if node == "" {
		node = "n1"
	}
	switch {
	case err != nil:
		return none, err
	case v.Attached && v.Holder != node:
		return none, fault.New(fault.Busy, "volume "+name, "held by node "+v.Holder)
	case !v.Attached:
		c.attach(v, node)
		c.event("volume "+name, "attached", "on node "+node+" by request", "info")
	}
	return *v.Address, nil
}

func (c *Cluster) Detach(_ context.Context, name string) error {
	defer c.mu.Unlock()
	if err := c.begin("Detach", name); err != nil {
		return err
	}
	v, err := c.lookup(name)
	if err != nil {
		return err
	}
	v.Attached, v.Holder, v.Mode, v.State, v.Address = false, "", "", "detached", nil
	c.event("volume "+name, "detached", "by request", "info")
	return nil
}

// Verify tells progress in four steps.
func (c *Cluster) Verify(_ context.Context, name string, progress func(done, todo uint64)) (none resource.Verified, err error) {
	v, err := find(c, "Verify", "volume", name, &c.volumes, volumeName)
	if err != nil {
		return none, err
	}
	for i := range uint64(4) {
		progress(v.Size/4*(i+1), v.Size)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.verified, c.fail["VerifyEnd"]
}

func (c *Cluster) Events(_ context.Context, since string, limit int) ([]resource.Event, error) {
	defer c.mu.Unlock()
	if err := c.begin("Events"); err != nil {
		return nil, err
	}
	if since == "" {
		return slices.Clone(c.events[max(0, len(c.events)-limit):]), nil
	}
	after := c.behind(since)
	return after[:min(limit, len(after))], nil
}

func (c *Cluster) behind(since string) []resource.Event {
	i := slices.IndexFunc(c.events, func(e resource.Event) bool { return e.ID > since })
	if i < 0 {
		return nil
	}
	return slices.Clone(c.events[i:])
}

func (c *Cluster) Follow(ctx context.Context, since string) (<-chan resource.Event, error) {
	defer c.mu.Unlock()
	if err := c.begin("Follow"); err != nil {
		return nil, err
	}
	var old []resource.Event
	if since != "" {
		old = c.behind(since)
	}
	f := make(chan resource.Event, len(old)+100)
	for _, e := range old {
		f <- e
	}
	c.follower[f] = struct{}{}
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, ok := c.follower[f]; ok {
			delete(c.follower, f)
			close(f)
		}
	})
	select {
	case c.followed <- struct{}{}:
	default: // nobody counts
	}
	return f, nil
}

// Internal answers with the call's name and body.
func (c *Cluster) Internal(_ context.Context, call string, body []byte) ([]byte, error) {
	defer c.mu.Unlock()
	if err := c.begin("Internal", call, " ", string(body)); err != nil {
		return nil, err
	}
	return []byte(call + ":" + string(body)), nil
}
