package control

import (
	"context"
	"encoding/json"
	"time"

	"samovar/internal/driver/replicahost"
	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
	"samovar/internal/placement"
	"samovar/internal/resource"
	"samovar/internal/volume"
)

// CreateVolume makes replicas on pools that placement chooses, then the volume's record.
func (c *Control) CreateVolume(ctx context.Context, q resource.NewVolume) (resource.Volume, error) {
	if err := c.view.ready(); err != nil {
		return resource.Volume{}, err
	}
	if q.Copies == 0 {
		q.Copies = 2
	}
	op := "create volume " + q.Name
	taken := fault.New(fault.Exists, op, "there is a volume of this name (samovar volume info "+q.Name+")")
	switch _, err := c.opts.Store.Get(ctx, "names/"+q.Name); {
	case err == nil:
		return resource.Volume{}, taken
	case !fault.Is(err, fault.NotFound):
		return resource.Volume{}, err // before anything is made
	}
	cfg, err := c.design(q)
	if err != nil {
		return resource.Volume{}, err
	}
	entered := kv.Refused(c.createReplicas(ctx, cfg))
	if entered.Err == nil {
		entered = c.enter(ctx, cfg, wantRecord{Copies: q.Copies, Created: time.Now().UTC()})
	}
	if entered.Verdict == kv.Conflict {
		entered.Err = taken
	}
	if entered.Verdict != kv.Applied {
		if err = c.undo(cfg, op, entered); err != nil {
			return resource.Volume{}, err
		}
	}
	c.event("volume "+q.Name, "volume-created", "info", "with copies on "+c.poolList(cfg))
	return c.awaitVolume(ctx, q.Name)
}

// enter writes a new volume's records, unless its creation was undone.
func (c *Control) enter(ctx context.Context, cfg volume.Configuration, want wantRecord) kv.Outcome {
	return c.opts.Store.Txn(ctx,
		[]kv.Condition{{Key: "names/" + cfg.Name}, {Key: volumeKey(cfg.Volume)}, {Key: deletedKey(cfg.Volume)}},
		[]kv.Change{
			{Key: "names/" + cfg.Name, Value: []byte(cfg.Volume.String())},
			{Key: volumeKey(cfg.Volume), Value: encode(cfg)},
			{Key: wantKey(cfg.Volume), Value: encode(want)},
		})
}

// undo takes a failed creation back. A mark that the volume is deleted keeps its records from being written later,
// and makes its pools let go of replicas. Nobody has written to them. No error: it was created, and only the answer
// was lost.
func (c *Control) undo(cfg volume.Configuration, op string, entered kv.Outcome) error {
	ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
	defer cancel()
	marked := c.mark(ctx, cfg)
	switch {
	case marked.Verdict == kv.Conflict:
		return nil
	case marked.Verdict == kv.Applied:
		c.removeReplicas(ctx, cfg)
		return entered.Err
	}
	c.tasks.Go(func() { c.markLater(cfg) })
	if entered.Verdict != kv.Unknown {
		c.removeReplicas(ctx, cfg)
		return entered.Err
	}
	return &fault.Error{Kind: fault.Aborted, Op: op, Err: entered.Err,
		Text: "it may have been created all the same (samovar volume list shows it then); otherwise what was made is removed when the cluster store answers again"}
}

func (c *Control) mark(ctx context.Context, cfg volume.Configuration) kv.Outcome {
	return c.opts.Store.Txn(ctx, []kv.Condition{{Key: volumeKey(cfg.Volume)}}, []kv.Change{
		{Key: deletedKey(cfg.Volume), Value: encode(cfg)},
	})
}

// markLater marks a volume as deleted when the store answers again, unless it was created.
func (c *Control) markLater(cfg volume.Configuration) {
	for pause(c.ctx, time.Second) {
		if v := c.mark(c.ctx, cfg).Verdict; v == kv.Applied || v == kv.Conflict {
			return
		}
	}
}

// design lays a new volume out.
func (c *Control) design(q resource.NewVolume) (volume.Configuration, error) {
	if q.ExtentSize == 0 {
		q.ExtentSize = volume.DefaultExtentSize
		for q.Size > q.ExtentSize*volume.MaxExtents && q.ExtentSize < volume.MaxExtentSize {
			q.ExtentSize *= 2
		}
	}
	pools, err := placement.Mirrored(c.candidates(), placement.Request{Volume: q.Name, Copies: q.Copies, Size: q.Size, Only: q.Pools})
	if err != nil {
		return volume.Configuration{}, err
	}
	cfg := volume.Configuration{
		Volume: randomID(), Name: q.Name, Size: q.Size, Layout: volume.Mirrored(q.Size, q.ExtentSize), Protocol: "C",
		Generation: 1, GenerationID: randomID(), Groups: []volume.Group{{}},
	}
	for _, p := range pools {
		cfg.Groups[0].Members = append(cfg.Groups[0].Members, volume.Member{Pool: p, InSync: true})
	}
	if extents := (q.Size + q.ExtentSize - 1) / max(q.ExtentSize, 1); extents > volume.MaxExtents {
		return cfg, fault.New(fault.Invalid, "create volume "+q.Name, "more than 16384 extents: take a larger extent size")
	}
	return cfg, cfg.Validate()
}

// candidates lists the pools of the cluster as placement sees them.
func (c *Control) candidates() []placement.Pool {
	var out []placement.Pool
	for _, p := range c.poolResources() {
		id, err := volume.ParseID(p.ID)
		if err != nil {
			continue
		}
		free := p.Free - min(p.Free, p.Reserved)
		out = append(out, placement.Pool{ID: id, Name: p.Name, Node: p.Node, Online: p.Online, Free: free, Total: p.Total})
	}
	return out
}

func (c *Control) poolList(cfg volume.Configuration) string {
	text := ""
	for i, m := range members(cfg) {
		if i > 0 {
			text += ", "
		}
		text += c.view.poolLabel(m.Pool)
	}
	return text
}

type replicaRequest struct {
	Pool          volume.PoolID        `json:"pool"`
	Volume        volume.ID            `json:"volume"`
	Configuration volume.Configuration `json:"configuration"`
}

func (c *Control) createReplicas(ctx context.Context, cfg volume.Configuration) error {
	for _, m := range members(cfg) {
		p, ok := c.view.pool(m.Pool)
		if !ok {
			return notFound("pool", m.Pool.String())
		}
		if _, err := call[struct{}](ctx, c, p.Node, "create-replica", replicaRequest{Pool: m.Pool, Configuration: cfg}); err != nil {
			return err
		}
	}
	return nil
}

// removeReplicas removes the replicas of a deleted volume at once where it can. Nodes that are away do it when they
// return, for the mark stays.
func (c *Control) removeReplicas(ctx context.Context, cfg volume.Configuration) {
	for _, m := range members(cfg) {
		p, ok := c.view.pool(m.Pool)
		if !ok || !c.view.online(p.Node) {
			continue
		}
		_, err := call[struct{}](ctx, c, p.Node, "delete-replica", replicaRequest{Pool: m.Pool, Volume: cfg.Volume})
		if err != nil && !fault.Is(err, fault.NotFound) {
			c.event("volume "+cfg.Name, "delete-delayed", "warning", "its copy on "+c.view.poolLabel(m.Pool)+" is removed later: "+err.Error())
		}
	}
}

// createReplica makes an empty replica in a pool of this node.
func (c *Control) createReplica(q replicaRequest) error {
	pool := c.opened(q.Pool)
	if pool == nil {
		return fault.New(fault.Unavailable, "create replica of volume "+q.Configuration.Name, "pool "+q.Pool.String()+" is not open on node "+c.opts.Node)
	}
	cfg := q.Configuration
	if err := cfg.Validate(); err != nil {
		return err
	}
	state := volume.ReplicaState{
		Volume: cfg.Volume, Pool: q.Pool, Accepted: cfg, History: []volume.GenerationID{cfg.GenerationID},
	}
	return c.host.Create(pool, cfg.Volume, func() error { return pool.CreateReplica(cfg, state, nil) })
}

// awaitVolume waits until this node's copy of the store shows a volume.
func (c *Control) awaitVolume(ctx context.Context, name string) (resource.Volume, error) {
	for {
		changed := c.view.change()
		if _, ok := c.view.volumeID(name); ok {
			return c.Volume(ctx, name)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return resource.Volume{}, fault.New(fault.Unavailable, "create volume "+name, "created, but this node has not seen it yet")
		}
	}
}

// DeleteVolume removes a volume that nobody has attached, and its replicas.
func (c *Control) DeleteVolume(ctx context.Context, name string) error {
	id, err := c.lookUp(ctx, name)
	if err != nil {
		return err
	}
	cfg, err := c.deletable(ctx, id)
	if err != nil {
		return err
	}
	out := c.opts.Store.Txn(ctx, []kv.Condition{{Key: volumeKey(id), ModRevision: int64(cfg.Revision)}}, []kv.Change{
		{Key: volumeKey(id), Remove: true}, {Key: "names/" + name, Remove: true}, {Key: wantKey(id), Remove: true},
		{Key: deletedKey(id), Value: encode(cfg)},
	})
	switch out.Verdict {
	case kv.Applied:
	case kv.Conflict:
		return fault.New(fault.Busy, "delete volume "+name, "it was changed or attached at the same moment; try again")
	default:
		return fault.Wrap(fault.KindOf(out.Err), "delete volume "+name, out.Err)
	}
	c.event("volume "+name, "volume-deleted", "info", "its copies on "+c.poolList(cfg)+" are being removed")
	c.removeReplicas(ctx, cfg)
	return nil
}

// deletable reads the record of a volume that nobody uses; a recovery of it is ended.
func (c *Control) deletable(ctx context.Context, id volume.ID) (cfg volume.Configuration, err error) {
	for {
		cfg, err = records{c.opts.Store}.Look(ctx, id)
		if err != nil || cfg.Engine == (volume.EngineID{}) {
			return cfg, err
		}
		op := "delete volume " + cfg.Name
		if !c.view.online(cfg.Holder) {
			return cfg, fault.New(fault.Busy, op, "it is held by node "+cfg.Holder+", which is not online; attach it elsewhere, which takes it over, and detach it")
		}
		_, err = call[struct{}](ctx, c, cfg.Holder, "detach", attachRequest{Name: cfg.Name, Recovery: true})
		switch {
		case fault.Is(err, fault.NotFound):
			return cfg, nil // nobody runs it; who begins to changes the record, and then it is not deleted
		case fault.Is(err, fault.Busy):
			return cfg, fault.New(fault.Busy, op, "it is attached on node "+cfg.Holder+" (samovar volume detach "+cfg.Name+" first)")
		case err != nil:
			return cfg, err
		}
		if !pause(ctx, 20*time.Millisecond) {
			return cfg, fault.New(fault.Busy, op, "node "+cfg.Holder+" is still recovering it")
		}
	}
}

// lookUp finds a volume by name in the store itself.
func (c *Control) lookUp(ctx context.Context, name string) (volume.ID, error) {
	r, err := c.opts.Store.Get(ctx, "names/"+name)
	if fault.Is(err, fault.NotFound) {
		return volume.ID{}, notFound("volume", name)
	}
	if err != nil {
		return volume.ID{}, err
	}
	id, err := volume.ParseID(string(r.Value))
	return id, err
}

// Internal answers calls of other nodes.
func (c *Control) Internal(ctx context.Context, name string, body []byte) ([]byte, error) {
	switch name {
	case "create-pool":
		return answer(body, func(q resource.NewPool) (resource.Pool, error) { return c.CreatePool(ctx, q) })
	case "create-replica":
		return answer(body, func(q replicaRequest) (struct{}, error) { return struct{}{}, c.createReplica(q) })
	case "delete-replica":
		return answer(body, func(q replicaRequest) (struct{}, error) {
			return struct{}{}, c.deleteReplica(replicahost.Key{Volume: q.Volume, Pool: q.Pool})
		})
	case "runs":
		return answer(body, func(q attachRequest) (bool, error) { return c.runsHere(q.Name), nil })
	case "attach":
		return answer(body, func(q attachRequest) (resource.Attachment, error) { return c.attachHere(ctx, q.Name) })
	case "detach":
		return answer(body, func(q attachRequest) (struct{}, error) { return struct{}{}, c.detachHere(ctx, q.Name, q.Recovery) })
	case "checksum":
		return answer(body, func(q checksumRequest) (checksumAnswer, error) { return c.checksum(q) })
	}
	return nil, fault.New(fault.NotFound, "internal call "+name, "this version does not know it")
}

func answer[Q, A any](body []byte, f func(Q) (A, error)) ([]byte, error) {
	var q Q
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fault.Wrap(fault.Invalid, "read an internal call", err)
	}
	a, err := f(q)
	if err != nil {
		return nil, err
	}
	return encode(a), nil
}

// call asks a node, this one included.
func call[A any](ctx context.Context, c *Control, node, name string, q any) (a A, err error) {
	var body []byte
	if node == c.opts.Node {
		body, err = c.Internal(ctx, name, encode(q))
	} else {
		m, ok := find[memberRecord](c.view, "members/"+node)
		if !ok {
			return a, notFound("node", node)
		}
		if !c.view.online(node) {
			return a, fault.New(fault.Unavailable, name+" on node "+node, "the node is not online")
		}
		body, err = c.opts.Peers.Call(ctx, m.API, name, encode(q))
	}
	if err != nil {
		return a, err
	}
	return a, decode("the answer of node "+node, body, &a)
}
