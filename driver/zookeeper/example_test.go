package zookeeper_test

// This file has the examples of the package.

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
)

// address returns the address of the examples' server.
func address() string { return locktest.Shared().Addr() }

func ExampleParseDSN() {
	cfg, err := zookeeper.ParseDSN("zk1,zk2:2182/locks?session_timeout=10s&layout=kazoo")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cfg.Servers, cfg.Chroot, cfg.SessionTimeout, cfg.Layout)
	// Output: [zk1:2181 zk2:2182] /locks 10s kazoo
}

func ExampleNewConnector() {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers:        []string{address()},
		Chroot:         "/locks",
		SessionTimeout: 10 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := lockpool.OpenConnector(connector)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	fmt.Println(pool.Ping(context.Background()))
	// Output: <nil>
}

// All connections are encrypted. A server that wants a client certificate gets the
// one in Certificates; RootCAs is needed for a private authority.
func ExampleConfig_tls() {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{"zk1.example.com:2281", "zk2.example.com:2281"},
		TLS: &tls.Config{
			MinVersion: tls.VersionTLS12,
			// Certificates: []tls.Certificate{certificate},
			// RootCAs:      authorities,
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := lockpool.OpenConnector(connector)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	fmt.Println(pool)
	// Output: lockpool.Pool(zookeeper)
}

// With a digest, only clients with the same user and password can use the locks.
func ExampleConfig_digest() {
	cfg := zookeeper.Config{
		Servers: []string{address()},
		Chroot:  "/shop",
		Digest:  zookeeper.Digest{User: "shop", Password: "secret"},
	}
	connector, err := zookeeper.NewConnector(cfg)
	if err != nil {
		log.Fatal(err)
	}
	pool, err := lockpool.OpenConnector(connector)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	fmt.Println(cfg.Digest) // passwords are never printed
	fmt.Println(pool.Do(context.Background(), "orders/42", func(context.Context) error { return nil }))
	// Output:
	// shop:(hidden)
	// <nil>
}

// With this ACL, only the user can lock, but every client can see the locks.
func ExampleConfig_acl() {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{address()},
		Chroot:  "/public",
		Digest:  zookeeper.Digest{User: "shop", Password: "secret"},
		ACL:     append(zk.AuthACL(zk.PermAll), zk.WorldACL(zk.PermRead)...),
	})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := lockpool.OpenConnector(connector)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	fmt.Println(pool.Do(context.Background(), "orders/42", func(context.Context) error { return nil }))
	// Output: <nil>
}

// With the layout for kazoo, its locks and lockpool's exclude each other.
func ExampleLayout() {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{address()},
		Chroot:  "/kazoo",
		Layout:  zookeeper.LayoutKazoo,
	})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := lockpool.OpenConnector(connector)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	fmt.Println(pool.Do(context.Background(), "orders/42", func(context.Context) error { return nil }))
	// Output: <nil>
}
