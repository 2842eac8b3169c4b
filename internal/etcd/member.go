// Package etcd is the one package that knows etcd. Member runs an embedded etcd server; Client is a kv.Store over
// the client ports of members, embedded or external.
//
// It must not know what the records mean, nor exports or faces. No type of etcd leaves it. Consumers need only
// package kv, which does not link etcd.
//
//	Start --> running, not ready --> ready (a majority agreed once)     Failed: the server stopped itself
//	            |                      |                                (its disk failed); the process lives on,
//	            +------ Close ---------+--> closed                      and so do calls through other members
//
// A member's directory:
//
//	LOCK          held with flock while a process has the directory
//	member.json   whose it is: format, version, cluster token, name, whether data was ever made
//	etcd/         etcd's own data directory (write-ahead log, snapshots, database)
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"samovar/internal/fault"
)

// Member is an embedded etcd member.
type Member struct {
	opts    MemberOptions
	dir     *directory
	server  *embed.Etcd // set once by Start
	zapping *zapCore

	closing  context.Context // ends when Close begins; open streams end with it
	closeNow context.CancelFunc
	closed   chan struct{} // the server has ended and the directory is released

	failed     chan struct{} // the server hit an error that it does not survive
	failedOnce sync.Once
	failure    error // set before failed is closed

	closeOnce sync.Once
	stage     atomic.Pointer[string] // what Close does right now, for its deadline's error
}

// Leader is what a member knows about the leader.
type Leader struct {
	Known bool
	Self  bool
	Name  string // may be empty for a member that was never ready
	ID    uint64
}

// MemberStatus is a member seen from inside.
type MemberStatus struct {
	Name          string
	MemberID      uint64
	ClusterID     string
	Ready         bool
	Failure       error // nil unless the server stopped itself
	Leader        Leader
	Term          uint64
	CommitIndex   uint64
	AppliedIndex  uint64
	DatabaseBytes int64
	InUseBytes    int64
	QuotaBytes    int64
	Alarms        []string // "NOSPACE", "CORRUPT"
}

// Start runs a member. It returns when the server runs, which needs no majority: Ready tells when one agreed. ctx
// bounds the start only.
func Start(ctx context.Context, opts MemberOptions) (*Member, error) {
	op := "start the cluster store's member " + opts.Name
	cfg, opts, err := opts.configure(op)
	if err != nil {
		return nil, err
	}
	dir, err := openDirectory(op, opts)
	if err != nil {
		return nil, err
	}
	m := &Member{opts: opts, dir: dir, failed: make(chan struct{}), closed: make(chan struct{})}
	m.closing, m.closeNow = context.WithCancel(context.Background())
	m.zapping = newZapCore(opts.Logger, m.closing.Done())
	cfg.Dir = dir.data()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(m.zapping.logger(m.fail))
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(m.endStreams)}

	started := make(chan error, 1)
	go func() { started <- m.launch(cfg) }()
	select {
	case err = <-started:
	case <-m.failed:
		// The goroutine that hit it is gone with whatever it had open, so the directory stays locked.
		return nil, fault.Wrap(fault.IO, op, m.failure)
	case <-ctx.Done():
		go func() { // it cannot be interrupted: let it come up, and end it
			select {
			case err := <-started:
				if err == nil {
					m.finish()
				}
				m.dir.release()
			case <-m.failed: // the directory stays locked, as above
			}
		}()
		return nil, fault.Wrap(fault.Unavailable, op, fmt.Errorf("not started in time: %w", ctx.Err()))
	}
	if err != nil {
		m.closeNow()
		dir.release()
		return nil, startError(op, err)
	}
	if err := dir.markMade(op); err != nil {
		m.finish()
		return nil, err
	}
	go m.supervise() // ends with the member
	return m, nil
}

// launch starts the server. A panic of its start is an error: it means that the files are not what they should be.
func (m *Member) launch(cfg *embed.Config) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("etcd panicked: %v", r)
		}
	}()
	m.server, err = embed.StartEtcd(cfg)
	return err
}

// startError finds the kind of an error of etcd's start.
func startError(op string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fault.Wrap(fault.Busy, op, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fault.Wrap(fault.Invalid, op, err)
	case strings.Contains(err.Error(), "has already been bootstrapped"):
		return &fault.Error{Kind: fault.Stale, Op: op, Err: err, Text: "the cluster knows this member, but the directory " +
			"holds no data of it; bring the directory back, or remove the member from the cluster and add it anew"}
	}
	return fault.Wrap(fault.IO, op, err)
}

// fail notes that the server hit an error that it does not survive.
func (m *Member) fail(text string) {
	m.failedOnce.Do(func() {
		m.failure = errors.New(text)
		close(m.failed)
	})
}

// supervise waits for the end of the server. After a failure it stops the rest as far as it goes: leadership is given
// away, so that a member that cannot write does not hold the cluster up.
func (m *Member) supervise() {
	ended := ""
	select {
	case <-m.failed:
	case <-m.closing.Done():
	case <-m.server.Server.StopNotify():
		ended = "the server stopped; was this member removed from its cluster?"
	case err := <-m.server.Err():
		ended = fmt.Sprintf("a socket failed: %v", err)
	}
	if m.closing.Err() != nil {
		return // all of that belongs to Close
	}
	if ended != "" {
		m.fail(ended)
	}
	m.opts.Logger.Error("the cluster store's member failed", "name", m.opts.Name, "error", m.failure)
	m.closeNow()
	m.server.Server.Stop()
}

// endStreams ends watches and lease streams when Close begins: etcd waits for its clients to end them, which they do
// not, and would take 7 seconds to stop.
func (m *Member) endStreams(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(m.closing, cancel)()
	return handler(srv, boundStream{stream, ctx})
}

type boundStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s boundStream) Context() context.Context { return s.ctx }

// Ready is closed when the member has agreed with a majority for the first time since its start, and serves clients.
func (m *Member) Ready() <-chan struct{} { return m.server.Server.ReadyNotify() }

// Failed is closed when the server stopped itself; Err says why.
func (m *Member) Failed() <-chan struct{} { return m.failed }

// Err is why the server stopped itself, or nil.
func (m *Member) Err() error {
	select {
	case <-m.failed:
		return fault.Wrap(fault.IO, "run the cluster store's member "+m.opts.Name, m.failure)
	default:
		return nil
	}
}

// WaitReady waits for Ready.
func (m *Member) WaitReady(ctx context.Context) error {
	op := "wait for the cluster store's member " + m.opts.Name
	select {
	case <-m.Ready():
		return nil
	case <-m.failed:
		return m.Err()
	case <-m.closing.Done():
		return fault.New(fault.Shutdown, op, "it is closed")
	case <-ctx.Done():
		return fault.Wrap(fault.Unavailable, op, fmt.Errorf("no majority of its cluster agreed yet: %w", ctx.Err()))
	}
}

// Leader tells who leads, as far as this member knows.
func (m *Member) Leader() Leader {
	s := m.server.Server
	id := s.Leader()
	leader := Leader{Known: id != 0, Self: id != 0 && id == s.MemberID(), ID: uint64(id)}
	if member := s.Cluster().Member(id); member != nil {
		leader.Name = member.Name
	}
	return leader
}

// Status describes the member.
func (m *Member) Status() MemberStatus {
	s := m.server.Server
	status := MemberStatus{Name: m.opts.Name, MemberID: uint64(s.MemberID()), ClusterID: clusterName(uint64(s.Cluster().ID())),
		Failure: m.Err(), Leader: m.Leader(), Term: s.Term(), CommitIndex: s.CommittedIndex(),
		AppliedIndex: s.AppliedIndex(), QuotaBytes: m.opts.QuotaBytes}
	select {
	case <-m.Ready():
		status.Ready = true
	default:
	}
	if m.closing.Err() != nil {
		return status // the database may be closed
	}
	status.DatabaseBytes, status.InUseBytes = s.Backend().Size(), s.Backend().SizeInUse()
	for _, alarm := range s.Alarms() {
		status.Alarms = append(status.Alarms, alarm.Alarm.String())
	}
	return status
}

// Endpoint is the address for clients.
func (m *Member) Endpoint() string { return m.opts.ClientURL }

// Close stops the member and releases its directory. At the deadline of ctx it returns an error that names what is
// slow; the work goes on behind it and the directory stays locked until it is done.
func (m *Member) Close(ctx context.Context) error {
	m.closeOnce.Do(func() { go m.finish() })
	select {
	case <-m.closed:
		return nil
	case <-ctx.Done():
		doing := "it has not begun"
		if s := m.stage.Load(); s != nil {
			doing = *s
		}
		return fault.Wrap(fault.Aborted, "close the cluster store's member "+m.opts.Name,
			fmt.Errorf("still busy: %s: %w", doing, ctx.Err()))
	}
}

func (m *Member) finish() {
	defer close(m.closed)
	begin := time.Now()
	m.enter("ending its clients' calls and the server")
	m.closeNow()
	select {
	case <-m.Ready():
	default:
		// etcd closes its client sockets before the server, and waits for them to be served first: a member that
		// never saw a majority would wait for ever.
		m.server.Server.HardStop()
	}
	m.server.Close()
	m.enter("releasing the directory")
	m.dir.release()
	m.opts.Logger.Debug("closed the cluster store's member", slog.String("name", m.opts.Name),
		slog.Duration("took", time.Since(begin)))
}

func (m *Member) enter(stage string) { m.stage.Store(&stage) }
