// Package daemon wires one node together: configuration, its member of the cluster store, the control plane with its
// engines and replicas, the listeners. It is the one place that knows everything, and decides nothing.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"samovar/internal/api"
	"samovar/internal/api/client"
	"samovar/internal/block"
	"samovar/internal/control"
	"samovar/internal/driver/link"
	"samovar/internal/etcd"
	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
	"samovar/internal/nbd"
	"samovar/internal/resource"
	"samovar/internal/store"
	"samovar/internal/store/disk"
	"samovar/internal/wire"
)

const (
	// facesTime is how long clients have for what is under way when a node ends.
	facesTime = 10 * time.Second
	// shutdownTime is how long a node takes after that at most to detach and close before it ends anyway.
	shutdownTime = 20 * time.Second
)

// Run runs a node until ctx ends.
func Run(ctx context.Context, c Config, version string, log *slog.Logger) error {
	if err := c.Check(); err != nil {
		return err
	}
	lock, err := lockDir(c.Dir)
	if err != nil {
		return err
	}
	defer lock.Close() // the lock goes with it
	d := &daemon{config: c, version: version, log: log}
	return d.run(ctx)
}

type daemon struct {
	config  Config
	version string
	log     *slog.Logger
	member  *etcd.Member // nil: none here
	store   kv.Store
}

func (d *daemon) run(ctx context.Context) (err error) {
	cluster, known, err := readIdentity(d.config.Dir, d.config.Node)
	if err != nil {
		return err
	}
	if err := d.startStore(ctx, known); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.closeStore()) }()
	if !known {
		d.log.Info("waiting for a majority of the cluster store", "endpoints", d.config.endpoints())
		if cluster, err = joinCluster(ctx, d.store, d.log); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := writeIdentity(d.config.Dir, d.config.Node, cluster); err != nil {
			return err
		}
	}
	listeners, err := d.listen()
	if err != nil {
		return err
	}
	return d.serve(ctx, cluster, listeners)
}

// listeners are this node's sockets.
type listeners struct {
	api, data net.Listener
	nbd       []net.Listener
}

func (d *daemon) listen() (l listeners, err error) {
	var open []net.Listener
	defer func() {
		if err != nil {
			for _, ln := range open {
				ln.Close() // the error that counts is the one above
			}
		}
	}()
	at := func(network, address string) net.Listener {
		if err != nil {
			return nil
		}
		var ln net.Listener
		if ln, err = net.Listen(network, address); err != nil {
			err = fault.Wrap(fault.Busy, "listen on "+address, err)
			return nil
		}
		open = append(open, ln)
		return ln
	}
	l.api, l.data = at("tcp", d.config.API), at("tcp", d.config.Data)
	if d.config.NBD != "none" {
		l.nbd = append(l.nbd, at("tcp", d.config.NBD))
	}
	if err == nil {
		err = removeSocket(d.config.Socket)
	}
	l.nbd = append(l.nbd, at("unix", d.config.Socket))
	return l, err
}

// removeSocket removes what an earlier run left. The directory is locked, so nobody listens there.
func removeSocket(path string) error {
	op := "listen on " + path
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fault.Wrap(fault.IO, op, err)
	case info.Mode().Type() != os.ModeSocket:
		return fault.New(fault.Exists, op, "there is a file of this name that is no socket; set another path")
	}
	if err := os.Remove(path); err != nil {
		return fault.Wrap(fault.IO, op, err)
	}
	return nil
}

// serve runs everything and ends it in order: first who brings work, then who does it.
func (d *daemon) serve(ctx context.Context, cluster [16]byte, l listeners) error {
	buffers := block.NewPool()
	c := control.New(d.controlOptions(cluster, buffers))
	server := api.NewServer(c, api.Options{Logger: d.log.With("part", "api")})
	exports := nbd.NewServer(nbd.Options{
		Opener: c, Pool: buffers, Logger: d.log.With("part", "nbd"), OpenTimeout: 2 * time.Minute, MaxSessions: 256,
	})

	running, stop := context.WithCancel(ctx)
	defer stop()
	controlled, stopControl := context.WithCancel(context.Background())
	defer stopControl()
	dataCtx, stopData := context.WithCancel(context.Background())
	defer stopData()

	failures := make(chan error, 8)
	var faces, data, plane sync.WaitGroup
	run := func(group *sync.WaitGroup, what string, f func() error) {
		group.Go(func() {
			if err := f(); err != nil {
				failures <- fault.Wrap(fault.KindOf(err), what, err)
			}
		})
	}
	run(&faces, "serve the API", func() error { return server.Serve(running, l.api) })
	for _, ln := range l.nbd {
		run(&faces, "serve NBD", func() error { return exports.Serve(running, ln) })
	}
	run(&data, "serve replica sessions", func() error {
		return link.Serve(dataCtx, l.data, c.LinkOptions(), c.Replicas(), d.log.With("part", "data"))
	})
	plane.Go(func() {
		c.Run(controlled, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), shutdownTime)
		})
	})
	plane.Go(func() { d.watchMember(controlled) })
	d.log.Info("node is up", "node", d.config.Node, "api", l.api.Addr().String(), "data", l.data.Addr().String(),
		"nbd", d.config.NBD, "socket", d.config.Socket)

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-failures:
	}
	d.log.Info("node ends", "node", d.config.Node)
	stop()
	if !wait(&faces, facesTime) {
		// Requests wait for replicas or for the cluster store. Ending their engines answers them.
		d.log.Warn("sessions do not end by themselves; their volumes are given up")
	}
	stopControl()
	plane.Wait()
	faces.Wait()
	stopData()
	data.Wait()
	return failure
}

// wait tells whether a group ended in time.
func wait(group *sync.WaitGroup, most time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		group.Wait()
	}()
	select {
	case <-ended:
		return true
	case <-time.After(most):
		return false
	}
}

func (d *daemon) controlOptions(cluster [16]byte, buffers *block.Pool) control.Options {
	c := d.config
	o := control.Options{
		Node: c.Node, API: c.API, Data: c.Data, Socket: c.Socket, Witness: c.Witness, Member: d.member != nil,
		Cluster: cluster, PingTimeout: time.Duration(c.PingTimeout), IdleDetach: time.Duration(c.IdleDetach),
		StoreFiles: disk.Native{}, StoreBackend: c.StoreBackend, Buffers: buffers, Counters: &link.Counters{}, Store: d.store,
		Peers: peers{log: d.log}, Logger: d.log,
		Version: resource.Version{
			Version: d.version, Go: runtime.Version(), Node: c.Node, Store: store.Version, Protocol: wire.Version,
		},
	}
	if c.NBD != "none" {
		o.NBD = []string{c.NBD}
	}
	if d.member != nil {
		o.Leader = leader{d.member}
	}
	return o
}

type leader struct{ m *etcd.Member }

// LeaderName is who leads the cluster store.
func (l leader) LeaderName() string { return l.m.Leader().Name }

// peers carries calls to other nodes over their API.
type peers struct{ log *slog.Logger }

// Call asks another node.
func (p peers) Call(ctx context.Context, address, call string, body []byte) ([]byte, error) {
	c, err := client.New([]string{address}, client.Options{Timeout: 2 * time.Minute})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Internal(ctx, call, body)
}

// Verify asks another node to compare a volume.
func (p peers) Verify(ctx context.Context, address, name string, progress func(done, todo uint64)) (resource.Verified, error) {
	c, err := client.New([]string{address}, client.Options{})
	if err != nil {
		return resource.Verified{}, err
	}
	defer c.Close()
	return c.Verify(ctx, name, func(at resource.Progress) {
		if progress != nil {
			progress(at.Done, at.Todo)
		}
	})
}

// watchMember tells of the end of this node's member of the cluster store, for example because its disk is full. The
// node goes on with the other members: I/O needs none of them.
func (d *daemon) watchMember(ctx context.Context) {
	if d.member == nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-d.member.Failed():
		d.log.Error("this node's member of the cluster store has stopped; the node goes on with the other members: free "+
			"space or mend its disk, then restart this node", "directory", d.config.Dir, "error", d.member.Err())
	}
}

// startStore starts this node's member of the cluster store, if it has one, and a client.
func (d *daemon) startStore(ctx context.Context, known bool) error {
	c := d.config
	if peer := c.Etcd.Members[c.Node]; peer != "" {
		m, err := etcd.Start(ctx, etcd.MemberOptions{
			Name: c.Node, Dir: c.Dir + "/store", ClientURL: c.Etcd.Clients[c.Node], PeerURL: peer,
			InitialCluster: c.Etcd.Members, ClusterToken: c.Etcd.Token, MustExist: known,
			Logger: d.log.With("part", "etcd"),
		})
		if err != nil {
			return err
		}
		d.member = m
	}
	s, err := etcd.Dial(etcd.Options{Endpoints: c.endpoints(), Logger: d.log.With("part", "store")})
	if err != nil {
		return errors.Join(err, d.closeStore())
	}
	d.store = s
	return nil
}

func (d *daemon) closeStore() error {
	var err error
	if d.store != nil {
		err = d.store.Close()
	}
	if d.member != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
		defer cancel()
		err = errors.Join(err, d.member.Close(ctx))
	}
	return err
}
