package etcd

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sort"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"samovar/internal/fault"
)

// MemberOptions describe an embedded member. Name, Dir, ClientURL, PeerURL and ClusterToken are needed.
type MemberOptions struct {
	Name string
	Dir  string // made if it does not exist, see MustExist
	// ClientURL and PeerURL are the addresses (host:port) under which clients and members reach this one.
	ClientURL, PeerURL string
	// ListenClient and ListenPeer are where the sockets are bound, if not there.
	ListenClient, ListenPeer string
	// InitialCluster names the first members and their peer addresses, this one included. Empty: this one alone.
	InitialCluster map[string]string
	// ClusterToken tells clusters apart: members with different tokens never form one.
	ClusterToken string
	// Join says that the cluster runs already and this member was added to it; InitialCluster names all members.
	Join bool
	// MustExist says that the member ran before: an empty directory is an error, not a first start.
	MustExist bool

	// ElectionTimeout and Heartbeat: 1500 ms and 150 ms. A member whose disk or processor stalls for longer than an
	// election timeout is voted out, so they are longer than etcd's; the timeout is at least five heartbeats, and
	// the same in all members.
	ElectionTimeout, Heartbeat time.Duration
	// QuotaBytes is the size at which the database takes no more writes. 1 GiB.
	QuotaBytes int64
	// CompactEvery forgets history that is older. One hour. CompactRevisions, if set, keeps that many revisions
	// instead.
	CompactEvery     time.Duration
	CompactRevisions int64
	// SnapshotCount is how many entries the log takes between snapshots. 10,000.
	SnapshotCount uint64
	// UnsafeNoFsync is for tests: a crash of the machine loses acknowledged writes.
	UnsafeNoFsync bool
	// Logger gets etcd's log, each level lowered by one. Nil: nothing is logged.
	Logger *slog.Logger
}

// configure checks the options, fills in the defaults and translates them.
func (o MemberOptions) configure(op string) (*embed.Config, MemberOptions, error) {
	o = o.withDefaults()
	cfg := embed.NewConfig()
	bad := func(text string) (*embed.Config, MemberOptions, error) {
		return nil, o, fault.New(fault.Invalid, op, text)
	}
	switch {
	case o.Name == "" || strings.ContainsAny(o.Name, "=, \n"):
		return bad("the name is empty or has a character that is not allowed")
	case o.Dir == "":
		return bad("no directory is given")
	case o.ClusterToken == "":
		return bad("no cluster token is given")
	case o.InitialCluster[o.Name] != o.PeerURL:
		return bad(fmt.Sprintf("the initial cluster gives %s the address %q, but its own is %q", o.Name, o.InitialCluster[o.Name], o.PeerURL))
	case o.Heartbeat < 10*time.Millisecond || o.ElectionTimeout < 5*o.Heartbeat || o.ElectionTimeout > 50*time.Second:
		return bad("the election timeout must be at least five heartbeats of at least 10 ms, and at most 50 s")
	}
	var members []string
	for name, address := range o.InitialCluster {
		if _, err := addressURL(address); err != nil {
			return bad(fmt.Sprintf("peer address of %s: %v", name, err))
		}
		members = append(members, name+"=http://"+address)
	}
	sort.Strings(members)
	for _, a := range []struct {
		to      *[]url.URL
		address string
	}{
		{&cfg.AdvertiseClientUrls, o.ClientURL}, {&cfg.AdvertisePeerUrls, o.PeerURL},
		{&cfg.ListenClientUrls, o.ListenClient}, {&cfg.ListenPeerUrls, o.ListenPeer},
	} {
		u, err := addressURL(a.address)
		if err != nil {
			return bad(err.Error())
		}
		*a.to = []url.URL{u}
	}
	cfg.Name = o.Name
	cfg.InitialCluster = strings.Join(members, ",")
	cfg.InitialClusterToken = o.ClusterToken
	if o.Join {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	cfg.TickMs, cfg.ElectionMs = uint(o.Heartbeat.Milliseconds()), uint(o.ElectionTimeout.Milliseconds())
	cfg.QuotaBackendBytes, cfg.SnapshotCount = o.QuotaBytes, o.SnapshotCount
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, o.CompactEvery.String()
	if o.CompactRevisions > 0 {
		cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModeRevision, fmt.Sprint(o.CompactRevisions)
	}
	cfg.UnsafeNoFsync = o.UnsafeNoFsync
	cfg.EnableGRPCGateway = false // a JSON door to the store that nobody asked for
	return cfg, o, nil
}

func (o MemberOptions) withDefaults() MemberOptions {
	if o.ElectionTimeout == 0 {
		o.ElectionTimeout = 1500 * time.Millisecond
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = min(150*time.Millisecond, o.ElectionTimeout/5)
	}
	if o.QuotaBytes == 0 {
		o.QuotaBytes = 1 << 30
	}
	if o.CompactEvery == 0 {
		o.CompactEvery = time.Hour
	}
	if o.SnapshotCount == 0 {
		o.SnapshotCount = 10_000
	}
	if len(o.InitialCluster) == 0 {
		o.InitialCluster = map[string]string{o.Name: o.PeerURL}
	}
	if o.ListenClient == "" {
		o.ListenClient = o.ClientURL
	}
	if o.ListenPeer == "" {
		o.ListenPeer = o.PeerURL
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func addressURL(address string) (url.URL, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" || port == "0" {
		return url.URL{}, fmt.Errorf("%q is not host:port with a fixed port", address)
	}
	return url.URL{Scheme: "http", Host: net.JoinHostPort(host, port)}, nil
}
