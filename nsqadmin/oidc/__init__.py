"""Login with accounts of an OpenID Connect provider: the code flow with PKCE, and sessions in sealed cookies.

    browser ── /login ─► LoginFlow.begin ──► provider's page ──► /login/callback ─► LoginFlow.finish ─► session cookie
    browser ── any other request ─► LoginFlow.current ─► a session, confirmed by the provider every five minutes

`session`, `id_token`, `claims` and `urls` decide, and do no I/O. `signatures` and `sealing` need packages that take
10 MB and a tenth of a second, so nsqadmin imports them in a thread, at the first login. docs/decisions/0045-oidc.md has
the reasons.
"""
