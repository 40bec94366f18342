"""The web application: routes, answers, logins, the API, metrics and live updates."""
