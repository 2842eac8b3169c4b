// Package control makes the cluster what people asked for: which nodes, pools and volumes there are, where a volume's
// copies stand, where its engine runs, and what to do when something is lost. It reads and writes the cluster store
// (package kv), runs engines and replicas of its own node through the drivers, and asks other nodes through Peers.
//
// It must not know the sockets of the data path, exports, or how the API carries its calls.
//
// Keys, relative to the cluster's prefix; values are JSON:
//
//	cluster                  identity of the cluster: id, created
//	members/NODE             every node that ever was part of it: addresses, witness
//	nodes/NODE        lease  a node that runs: incarnation, when it started
//	stats/NODE        lease  what it says about its pools, replicas and engines, every few seconds
//	pools/ID                 a pool: name, node, directory
//	poolnames/NAME           id of the pool
//	claims/ID         lease  the process that has the pool open (rule 15)
//	volumes/ID               volume.Configuration: the record; while attached only its engine changes the sets
//	names/NAME               id of the volume
//	wants/ID                 what people want of it: copies, where it is attached; the last verification
//	deleted/ID               a volume that was deleted: its replicas may go
//	events/TIME-NODE-N       events
//
// Locks: Control.mu guards the tables of this node; view.mu the copy of the store. No I/O under either.
package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"samovar/internal/block"
	"samovar/internal/driver/enginehost"
	"samovar/internal/driver/link"
	"samovar/internal/driver/replicahost"
	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/resource"
	"samovar/internal/store"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
)

// Peers carries calls to other nodes.
type Peers interface {
	// Call asks the node whose API is at address. Errors carry the kind that the other node gave.
	Call(ctx context.Context, address, call string, body []byte) ([]byte, error)
	// Verify asks it to compare a volume, which may take long. progress may be nil.
	Verify(ctx context.Context, address, name string, progress func(done, todo uint64)) (resource.Verified, error)
}

// Leader tells who leads the cluster store, as far as this node knows: "" if it does not.
type Leader interface{ LeaderName() string }

// Options of a Control.
type Options struct {
	Node        string
	Version     resource.Version
	API         string   // host:port under which other nodes reach this one's API
	Data        string   // the same for replica sessions
	NBD         []string // addresses of its NBD server, for people
	Socket      string   // unix socket of its NBD server
	Witness     bool
	Member      bool // runs a member of the cluster store
	Cluster     [16]byte
	PingTimeout time.Duration
	IdleDetach  time.Duration // from the last session of an automatic attachment to its end
	// RecoveryPace is the time between two looks at what has to be recovered. 0: two seconds.
	RecoveryPace time.Duration
	StoreFiles   disk.FS
	StoreBackend string // how pools do their I/O; see store.Options
	Buffers      *block.Pool
	Counters     *link.Counters
	Store        kv.Store
	Peers        Peers
	Leader       Leader
	Logger       *slog.Logger
}

// Control is the control plane of one node.
type Control struct {
	opts  Options
	run   string // of this process: in the node's lease and its pools' claims
	start time.Time
	view  *view
	log   *journal
	host  *replicahost.Host
	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup
	nudge chan struct{} // something of this node changed: publish it soon
	look  chan struct{} // look at this node's pools

	mu       sync.Mutex // guards what follows
	session  kv.Session // nil: no lease now
	pools    map[volume.PoolID]*localPool
	held     map[volume.ID]*held
	opening  map[volume.ID]chan struct{} // attachments being started
	lastSeen map[string]time.Time        // nodes: when they were last online
	tries    map[volume.ID]*try          // volumes that this node tries to recover
	ending   bool                        // nothing is attached any more
}

// New makes the control plane; Run starts it.
func New(o Options) *Control {
	o.RecoveryPace = cmp.Or(o.RecoveryPace, 2*time.Second)
	c := &Control{
		opts: o, run: randomHex(8), start: time.Now(), view: newView(),
		pools: map[volume.PoolID]*localPool{}, held: map[volume.ID]*held{}, opening: map[volume.ID]chan struct{}{},
		nudge: make(chan struct{}, 1), lastSeen: map[string]time.Time{},
		tries: map[volume.ID]*try{}, look: make(chan struct{}, 1),
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.log = newJournal(o.Node, o.Store, o.Logger)
	c.host = replicahost.New(replicahost.Options{
		Buffers: o.Buffers, Finder: c.finder(purposeCopier), Logger: o.Logger, Events: c.replicaEvent,
		LogLimit: 4096, FetchTimeout: o.PingTimeout,
	})
	return c
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: it ends the process instead
	return hex.EncodeToString(b)
}

func randomID() (id [16]byte) {
	rand.Read(id[:])
	return id
}

// Replicas takes sessions for this node's replicas.
func (c *Control) Replicas() link.Router { return c.host }

// Run works until ctx ends, then detaches what is attached here, within the deadline of the context that closing
// gives, and closes replicas and pools.
func (c *Control) Run(ctx context.Context, closing func() (context.Context, context.CancelFunc)) {
	c.tasks.Go(func() { c.view.follow(c.ctx, c.opts.Store) })
	c.tasks.Go(func() { c.view.probe(c.ctx, c.opts.Store) })
	c.tasks.Go(func() { c.log.run(c.ctx) })
	c.tasks.Go(func() { c.stayRegistered(c.ctx) })
	c.tasks.Go(func() { c.keepPools(c.ctx) })
	c.tasks.Go(func() { c.publishStats(c.ctx) })
	c.tasks.Go(func() { c.recoverVolumes(c.ctx) })
	<-ctx.Done()
	end, cancel := closing()
	defer cancel()
	c.detachAll(end)
	c.host.Close()
	c.closePools()
	c.unregister(end)
	c.stop()
	c.tasks.Wait()
	c.log.flush(end)
}

// members lists the replicas of a volume; none of a record that this version cannot read.
func members(cfg volume.Configuration) []volume.Member {
	if len(cfg.Groups) == 0 {
		return nil
	}
	return cfg.Groups[0].Members
}

// changed asks for this node's state to be published soon.
func (c *Control) changed() {
	select {
	case c.nudge <- struct{}{}:
	default:
	}
}

// engineOptions are the timings of an engine, derived from the ping time-out.
func (c *Control) engineOptions(record volume.Configuration, mode string) engine.Options {
	t := c.opts.PingTimeout
	o := engine.Options{
		Engine: randomID(), Node: c.opts.Node, Mode: mode, Local: c.localPoolOf(record),
		PingInterval: t / 10, PingTimeout: t, SlowAfter: 4 * t, SlowFor: 12 * t, Lease: t, AttachWait: t, CopyDeadline: 2 * t,
		SyncInterval: 2 * time.Second, RetryDelay: 100 * time.Millisecond,
		Copies: 4, CopyBlocks: 16,
		NewGeneration: func() volume.GenerationID { return randomID() },
	}
	return o
}

func (c *Control) localPoolOf(record volume.Configuration) volume.PoolID {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range members(record) {
		if p := c.pools[m.Pool]; p != nil && p.pool != nil {
			return m.Pool
		}
	}
	return volume.PoolID{}
}

// start runs an engine for record.
func (c *Control) startEngine(record volume.Configuration, mode string) *enginehost.Attachment {
	return enginehost.Start(enginehost.Options{
		Engine: c.engineOptions(record, mode), Recorder: records{c.opts.Store}, Connector: c.finder(purposeEngine),
		Buffers: c.opts.Buffers, Logger: c.opts.Logger,
		Events:       func(e engine.Event) { c.engineEvent(record.Name, e) },
		StoreTimeout: 3 * time.Second, MaxRequests: 256, MaxBytes: 64 << 20,
	}, record)
}

func (c *Control) engineEvent(name string, e engine.Event) {
	level := "info"
	switch e.Reason {
	case "replica-failing", "replica-left", "replica-refused", "engine-ended", "copy-failed", "copy-stuck", "join-abandoned":
		level = "warning"
	case "unflushed-lost", "last-replica-failed", "replica-behind":
		level = "error"
	}
	text := e.Text
	if e.Pool != (volume.PoolID{}) {
		text = "replica on " + c.view.poolLabel(e.Pool) + ": " + text
	}
	c.log.add(resource.Event{Object: "volume " + name, Reason: e.Reason, Text: text, Bytes: e.Bytes, Level: level})
	c.changed()
}

func (c *Control) replicaEvent(e replicahost.Event) {
	c.log.add(resource.Event{
		Object: "pool " + c.view.poolLabel(e.Pool), Reason: e.Reason, Level: "error",
		Text: "replica of volume " + c.view.volumeName(e.Volume) + ": " + e.Text,
	})
	c.changed()
}

func (c *Control) event(object, reason, level, text string) {
	c.log.add(resource.Event{Object: object, Reason: reason, Level: level, Text: text})
}

func notFound(kind, name string) error {
	return fault.New(fault.NotFound, kind+" "+name, "there is no such "+kind+" (samovar "+kind+" list shows them)")
}

// storeOptions say how pools are opened.
func (c *Control) storeOptions() store.Options {
	return store.Options{Cluster: c.opts.Cluster, Logger: c.opts.Logger, Backend: c.opts.StoreBackend}
}
