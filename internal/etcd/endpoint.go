package etcd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"samovar/internal/fault"
)

// endpoint is the connection to one member. There is one connection a member, and calls name the member they use,
// because the balancer of etcd's own client can neither say which member did not answer nor tell for certain
// whether a write left this process.
type endpoint struct {
	address     string
	conn        *grpc.ClientConn
	kv          pb.KVClient
	lease       pb.LeaseClient
	watch       pb.WatchClient
	maintenance pb.MaintenanceClient

	inUse    atomic.Int64 // calls and watches that run on it; the prober watches it while there are any
	admitted atomic.Bool  // it answered, has a leader and belongs to our cluster

	mu    sync.Mutex // guards the rest
	alive scope      // ends when the prober finds the member silent: everything that waits for it is let go
	reign scope      // ends some time after the leader changed: only the writes given to the old one are let go
	term  uint64     // of the reign; 0 before the first answer
}

// scope is a context with its end.
type scope struct {
	context.Context
	end context.CancelFunc
}

func newScope() scope {
	ctx, cancel := context.WithCancel(context.Background())
	return scope{ctx, cancel}
}

const (
	// windowBytes is the fixed flow control window of a stream: what a slow reader of a watch can pile up here.
	windowBytes = 512 << 10
	// maxMessageBytes bounds a reply; the store as a whole is a few MiB.
	maxMessageBytes = 256 << 20
	// reignGrace is how long a write may stay without an answer after a new leader is seen. A follower hands a write
	// to the leader it knows; if that one died the write is lost, and etcd would wait for 7 seconds to say so.
	reignGrace = time.Second
)

func newEndpoint(address string) (*endpoint, error) {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(sendWatcher{}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(4*windowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * time.Second,
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}}),
		// 10 s is the shortest that gRPC allows. The timeout becomes TCP_USER_TIMEOUT, so a peer that vanishes
		// breaks the connection 2 s after something was sent to it; the prober always sends something.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}))
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "connect to "+address, err)
	}
	ep := &endpoint{address: address, conn: conn, kv: pb.NewKVClient(conn), lease: pb.NewLeaseClient(conn),
		watch: pb.NewWatchClient(conn), maintenance: pb.NewMaintenanceClient(conn)}
	ep.alive, ep.reign = newScope(), newScope()
	return ep, nil
}

// use marks the endpoint as used and gives the contexts that end when it is found silent, and when its leader is gone.
func (ep *endpoint) use() (alive, reign context.Context, release func()) {
	ep.inUse.Add(1)
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.alive, ep.reign, func() { ep.inUse.Add(-1) }
}

// letGo ends everything that waits for the endpoint.
func (ep *endpoint) letGo() {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.alive.end()
	ep.alive = newScope()
}

// sawTerm notes the term of the member's leader. A new one begins a new reign, and ends the old one after the grace.
func (ep *endpoint) sawTerm(term uint64) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.term != 0 && ep.term != term {
		time.AfterFunc(reignGrace, ep.reign.end)
		ep.reign = newScope()
	}
	ep.term = term
}

// ask tells whether the member answers (nil error), for which cluster, and whether it knows a leader.
func (ep *endpoint) ask(ctx context.Context) (cluster uint64, led bool, err error) {
	resp, err := ep.maintenance.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return 0, false, err
	}
	if resp.Leader != 0 {
		ep.sawTerm(resp.RaftTerm)
	}
	return resp.Header.GetClusterId(), resp.Leader != 0 && !resp.IsLearner, nil
}

// sentKey is the key of the *atomic.Bool in a call's context that sendWatcher sets.
type sentKey struct{}

// sendWatcher notes the moment from which a call may have reached the member. gRPC reports a header after queueing
// it and before it accepts the message, so a call whose flag is down cannot have been received.
type sendWatcher struct{}

func (sendWatcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sendWatcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sendWatcher) HandleConn(context.Context, stats.ConnStats)                       {}
func (sendWatcher) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader, *stats.OutPayload:
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

// errForeign is a member of another cluster.
type errForeign struct{ ours, theirs uint64 }

func (e errForeign) Error() string {
	return fmt.Sprintf("belongs to cluster %s, not to %s", clusterName(e.theirs), clusterName(e.ours))
}

// errLeaderless is a member that answers and knows no leader, or does not vote yet.
type errLeaderless struct{}

func (errLeaderless) Error() string { return "has no leader" }
