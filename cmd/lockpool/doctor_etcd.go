package main

// This file has doctor's examination of etcd.

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool/driver/etcd"
)

// etcdDoctor examines etcd.
type etcdDoctor struct {
	examination
	cfg etcd.Config
}

func examineEtcd(ctx context.Context, cfg etcd.Config) report {
	d := &etcdDoctor{cfg: cfg}
	d.report.Chroot = cfg.Prefix
	d.report.Findings = []finding{}
	d.members(ctx)
	if d.server == "" {
		return d.report
	}
	if client, err := d.dial(d.server); err != nil {
		d.find(wrong, "no session: "+oneLine(err), "locks need one", "look at the member's log")
	} else {
		defer client.Close()
		d.cluster(ctx, client)
		d.requests(ctx, client)
	}
	if connector, err := d.connector(d.server); err == nil {
		d.tryLock(ctx, connector, "doctor-"+rand.Text())
	}
	if cfg.TLS == nil && cfg.Password != "" {
		d.find(advice, "the password is sent without TLS", "everyone on the way can read it", "use --tls, and members that listen with https")
	}
	return d.report
}

// connector connects to one member.
func (d *etcdDoctor) connector(endpoint string) (*etcd.Connector, error) {
	cfg := d.cfg
	cfg.Endpoints = []string{endpoint}
	return etcd.NewConnector(cfg)
}

// dial returns a client of one member.
func (d *etcdDoctor) dial(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: d.cfg.TLS, Username: d.cfg.Username, Password: d.cfg.Password, DialTimeout: patience, Logger: zap.NewNop()})
}

// members asks each member of the connect string for its state.
func (d *etcdDoctor) members(ctx context.Context) {
	leaderless := 0
	for _, endpoint := range d.cfg.Endpoints {
		r := serverReport{Address: endpoint}
		connector, err := d.connector(endpoint)
		if err == nil {
			err = tryConnect(ctx, connector, endpoint)
		}
		status, failed := d.status(ctx, endpoint)
		if failed == nil {
			d.read(&r, status)
			switch full := strings.Contains(strings.Join(status.Errors, " "), "NOSPACE"); {
			case status.Leader == 0:
				err = errors.New("it runs, but the cluster has no leader")
				leaderless++
			case full && err != nil: // perhaps without an answer in time
				err = errors.New("the servers' database is full, and accepts removals only: compact and defragment it, then disarm the alarm")
			}
		}
		if err != nil {
			r.Error = oneLine(err)
			d.find(wrong, fmt.Sprintf("%s cannot be used: %s", endpoint, r.Error),
				"a cluster has fewer members to lose than it seems to have", "start the member, or correct the connect string or the credentials")
		} else {
			d.server = cmp.Or(d.server, endpoint)
		}
		d.report.Servers = append(d.report.Servers, r)
	}
	if d.server == "" && leaderless > 0 {
		d.find(wrong, "the cluster has no majority", fmt.Sprintf("%s of the connect string run, and wait for others: no lock is granted", count(leaderless, "member")),
			"start the other members, and look at the log of the running ones")
	}
}

func (d *etcdDoctor) status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	client, err := d.dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return client.Status(ctx, endpoint)
}

// read takes in the state of a member.
func (d *etcdDoctor) read(r *serverReport, status *clientv3.StatusResponse) {
	r.Version, r.Mode = "etcd "+status.Version, "follower"
	switch {
	case status.IsLearner:
		r.Mode = "learner"
		d.find(advice, r.Address+" is a learner", "it answers no request that a lock needs", "list voting members in the connect string")
	case status.Leader == status.Header.MemberId:
		r.Mode = "leader"
	}
	var patch int
	_, _ = fmt.Sscanf(status.Version, "3.5.%d", &patch)
	switch {
	case versionBefore(status.Version, 3, 4):
		d.find(wrong, r.Address+" runs etcd "+status.Version, "lockpool needs 3.4", "use etcd 3.5.3 or later")
	case status.Version == fmt.Sprintf("3.5.%d", patch) && patch < 3:
		d.find(advice, r.Address+" runs etcd "+status.Version, "3.5.0 to 3.5.2 can lose confirmed writes when a member is killed", "use a later release")
	}
	if quota := status.DbSizeQuota; quota > 0 && status.DbSize > quota/5*4 {
		d.find(advice, fmt.Sprintf("the database of %s has %d MB of %d MB", r.Address, status.DbSize>>20, quota>>20),
			"a full database refuses new locks", "compact and defragment, or raise --quota-backend-bytes")
	}
}

// cluster counts the voters.
func (d *etcdDoctor) cluster(ctx context.Context, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if list, err := client.MemberList(ctx); err == nil {
		learners := 0
		for _, m := range list.Members {
			if m.IsLearner {
				learners++
			}
		}
		d.voters(len(list.Members)-learners, len(d.cfg.Endpoints))
	}
}

// requests finds out the session timeout and the latency.
func (d *etcdDoctor) requests(ctx context.Context, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, 4*patience)
	defer cancel()
	asked := d.cfg.TTL
	granted, err := client.Grant(ctx, int64(asked/time.Second))
	if err != nil {
		d.find(wrong, "no session: "+oneLine(err), "locks need one", "do what the error says, or look at the member's log")
		return
	}
	defer client.Revoke(context.WithoutCancel(ctx), granted.ID)
	r := &sessionReport{Asked: ms(asked), Granted: ms(time.Duration(granted.TTL) * time.Second)}
	d.report.Session = r
	if r.Granted != r.Asked {
		d.find(advice, fmt.Sprintf("the session timeout is %s instead of %s", span(r.Granted), span(r.Asked)), "the members have longer election timeouts", "ask for that, or lower --election-timeout at the members")
	}
	const requests = 20
	var reads, writes []time.Duration
	d.report.Probe = d.cfg.Prefix + "/doctor-" + rand.Text()
	for range requests {
		began := time.Now()
		if _, err = client.Get(ctx, d.report.Probe); err != nil {
			break
		}
		reads = append(reads, time.Since(began))
		began = time.Now()
		if _, err = client.Put(ctx, d.report.Probe, "", clientv3.WithLease(granted.ID)); err != nil {
			break
		}
		writes = append(writes, time.Since(began))
	}
	if err != nil {
		d.find(wrong, "the latency is unknown: "+oneLine(err), "locks are keys below "+quoted(d.cfg.Prefix+"/"), "do what the error says, or look at the member's log")
		return
	}
	d.latency(reads, writes)
}
